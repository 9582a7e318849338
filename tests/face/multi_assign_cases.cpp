#include "face/multi_assign_cases.h"

#include <algorithm>
#include <limits>
#include <map>
#include <random>
#include <set>

#include <faiss/IndexFlat.h>
#include <faiss/impl/AuxIndexStructures.h>
#include <faiss/impl/FaissException.h>

namespace faiss_flashgmm::testing {

namespace {

constexpr size_t kSubquantizers = 4;
constexpr size_t kBits = 6;

bool better(float a, float b, faiss::MetricType metric) {
    return metric == faiss::METRIC_INNER_PRODUCT ? a > b : a < b;
}

} // namespace

std::vector<float> clustered_rows(
        idx_t n,
        int d,
        int clusters,
        unsigned seed,
        unsigned centre_seed) {
    std::mt19937 centre_random(centre_seed), random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> centres(clusters * d), rows(n * d);
    for (float& value : centres) {
        value = normal(centre_random);
    }
    for (idx_t i = 0; i < n; i++) {
        const float* centre = centres.data() + random() % clusters * d;
        for (int j = 0; j < d; j++) {
            rows[i * d + j] = centre[j] + 0.7f * normal(random);
        }
    }
    return rows;
}

const std::vector<float>& base_rows() {
    static const std::vector<float> rows =
            clustered_rows(kRows, kDim, kLists, 1);
    return rows;
}

const std::vector<float>& query_rows() {
    static const std::vector<float> rows =
            clustered_rows(kQueries, kDim, kLists, 2);
    return rows;
}

std::string Case::name() const {
    const char* codecs[] = {"flat", "pq", "pq_without_residuals"};
    const char* policies[] = {"single", "posterior", "nearest"};
    return std::string(codecs[int(codec)]) +
            (metric == faiss::METRIC_L2 ? "_l2_" : "_ip_") +
            policies[int(policy)];
}

std::vector<Case> all_cases() {
    std::vector<Case> cases;
    for (Codec codec : {Codec::flat, Codec::pq, Codec::pq_without_residuals}) {
        for (faiss::MetricType metric :
             {faiss::METRIC_L2, faiss::METRIC_INNER_PRODUCT}) {
            for (AssignPolicy policy :
                 {AssignPolicy::posterior, AssignPolicy::nearest}) {
                cases.push_back({codec, metric, policy});
            }
        }
    }
    return cases;
}

std::vector<Case> some_cases() {
    const auto l2 = faiss::METRIC_L2;
    const auto ip = faiss::METRIC_INNER_PRODUCT;
    return {{Codec::flat, l2, AssignPolicy::posterior},
            {Codec::flat, ip, AssignPolicy::nearest},
            {Codec::pq, l2, AssignPolicy::posterior},
            {Codec::pq_without_residuals, ip, AssignPolicy::posterior}};
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
    return info.param.name();
}

MultiIndex make_untrained(const Case& c, int d, int nlist) {
    auto* quantizer = new faiss::IndexFlat(d, c.metric);
    MultiIndex index;
    if (c.codec == Codec::flat) {
        auto ivf = std::make_unique<IndexIVFFlatMultiAssign>(
                quantizer, d, nlist, c.metric);
        index.multi = ivf.get();
        index.ivf = std::move(ivf);
    } else {
        auto ivf = std::make_unique<IndexIVFPQMultiAssign>(
                quantizer, d, nlist, kSubquantizers, kBits, c.metric);
        ivf->by_residual = c.codec == Codec::pq;
        ivf->pq.cp.min_points_per_centroid = 1;
        index.multi = ivf.get();
        index.ivf = std::move(ivf);
    }
    index->own_fields = true;
    index->cp.niter = 5;
    index->cp.min_points_per_centroid = 1;
    index.multi->assigner.policy = c.policy;
    index.multi->gmm.variance = VarianceModel::per_component;
    index.multi->gmm.weights = WeightModel::free;
    return index;
}

MultiIndex make_trained(const Case& c) {
    MultiIndex index = make_untrained(c);
    index->train(kRows, base_rows().data());
    return index;
}

MultiIndex make_filled(const Case& c) {
    MultiIndex index = make_trained(c);
    index->add(kRows, base_rows().data());
    return index;
}

MultiIndex copy_of_empty(const MultiIndex& from) {
    std::unique_ptr<faiss::IndexIVF> twin = stock_twin(*from);
    twin->quantizer = new faiss::IndexFlat(
            dynamic_cast<const faiss::IndexFlat&>(*from->quantizer));
    twin->own_fields = true;
    std::unique_ptr<faiss::Index> index = std::move(twin);
    MultiIndex copy;
    copy.multi = make_multi_assign(index, from.multi->assigner);
    copy.ivf.reset(dynamic_cast<faiss::IndexIVF*>(index.release()));
    if (from.multi->mixture().k > 0) {
        copy.multi->set_mixture(from.multi->mixture());
    }
    return copy;
}

std::unique_ptr<faiss::IndexIVF> stock_twin(const faiss::IndexIVF& index) {
    std::unique_ptr<faiss::IndexIVF> twin;
    if (auto* from = dynamic_cast<const faiss::IndexIVFPQ*>(&index)) {
        auto pq = std::make_unique<faiss::IndexIVFPQ>(
                index.quantizer,
                index.d,
                index.nlist,
                from->pq.M,
                from->pq.nbits,
                index.metric_type);
        pq->pq = from->pq;
        pq->by_residual = from->by_residual;
        pq->is_trained = true;
        if (pq->by_residual) {
            pq->precompute_table();
        }
        twin = std::move(pq);
    } else {
        twin = std::make_unique<faiss::IndexIVFFlat>(
                index.quantizer, index.d, index.nlist, index.metric_type);
    }
    twin->nprobe = index.nprobe;
    return twin;
}

void set_direct_map_type(faiss::IndexIVF& index, faiss::DirectMap::Type type) {
    if (auto* flat = dynamic_cast<IndexIVFFlatMultiAssign*>(&index)) {
        flat->set_direct_map_type(type);
    } else if (auto* pq = dynamic_cast<IndexIVFPQMultiAssign*>(&index)) {
        pq->set_direct_map_type(type);
    } else {
        index.set_direct_map_type(type);
    }
}

std::vector<idx_t> assigned_lists(
        const MultiIndex& index,
        const std::vector<float>& rows) {
    const idx_t n = rows.size() / index->d;
    std::vector<idx_t> lists(n * index.multi->assigner.max_lists());
    index.multi->assign_lists(n, rows.data(), lists.data());
    return lists;
}

std::vector<size_t> lists_of(const faiss::IndexIVF& index, idx_t id) {
    std::vector<size_t> lists;
    for (size_t list = 0; list < index.nlist; list++) {
        faiss::InvertedLists::ScopedIds ids(index.invlists, list);
        for (size_t j = 0; j < index.invlists->list_size(list); j++) {
            if (ids[j] == id) {
                lists.push_back(list);
            }
        }
    }
    return lists;
}

Results search(
        const faiss::Index& index,
        const std::vector<float>& queries,
        idx_t k,
        const faiss::SearchParameters* params) {
    const idx_t n = queries.size() / index.d;
    Results results{k, std::vector<float>(n * k), std::vector<idx_t>(n * k)};
    index.search(
            n,
            queries.data(),
            k,
            results.distances.data(),
            results.labels.data(),
            params);
    return results;
}

std::vector<std::vector<std::pair<idx_t, float>>> range_search(
        const faiss::Index& index,
        const std::vector<float>& queries,
        float radius,
        const faiss::SearchParameters* params) {
    const idx_t n = queries.size() / index.d;
    faiss::RangeSearchResult found(n);
    index.range_search(n, queries.data(), radius, &found, params);
    std::vector<std::vector<std::pair<idx_t, float>>> results(n);
    for (idx_t i = 0; i < n; i++) {
        for (size_t j = found.lims[i]; j < found.lims[i + 1]; j++) {
            results[i].emplace_back(found.labels[j], found.distances[j]);
        }
        std::sort(results[i].begin(), results[i].end());
    }
    return results;
}

void expect_well_formed(const Results& results, faiss::MetricType metric) {
    const idx_t n = results.labels.size() / results.k;
    for (idx_t i = 0; i < n; i++) {
        const idx_t* labels = results.labels.data() + i * results.k;
        const float* distances = results.distances.data() + i * results.k;
        const idx_t found = std::find(labels, labels + results.k, -1) - labels;
        const std::set<idx_t> ids(labels, labels + found);
        ASSERT_EQ(idx_t(ids.size()), found) << "an id twice, query " << i;
        for (idx_t j = 0; j < results.k; j++) {
            ASSERT_EQ(labels[j] == -1, j >= found) << "query " << i;
            ASSERT_FALSE(
                    j > 0 && better(distances[j], distances[j - 1], metric))
                    << "query " << i << ", result " << j;
        }
    }
}

Oracle::Oracle(
        const MultiIndex& index,
        const std::vector<float>& rows,
        const std::vector<idx_t>& ids)
        : primaries_(stock_twin(*index)), seconds_(stock_twin(*index)) {
    const std::vector<idx_t> lists = assigned_lists(index, rows);
    const int width = index.multi->assigner.max_lists();
    const idx_t n = rows.size() / index->d;
    for (int j = 0; j < width; j++) {
        std::vector<float> part_rows;
        std::vector<idx_t> part_ids, part_lists;
        for (idx_t i = 0; i < n; i++) {
            if (lists[i * width + j] >= 0) {
                part_rows.insert(
                        part_rows.end(),
                        rows.begin() + i * index->d,
                        rows.begin() + (i + 1) * index->d);
                part_ids.push_back(ids.empty() ? i : ids[i]);
                part_lists.push_back(lists[i * width + j]);
            }
        }
        (j == 0 ? primaries_ : seconds_)
                ->add_core(
                        part_ids.size(),
                        part_rows.data(),
                        part_ids.data(),
                        part_lists.data());
    }
}

void Oracle::expect_equal(
        const faiss::IndexIVF& index,
        const std::vector<float>& queries,
        idx_t k,
        const std::function<bool(idx_t)>& selected) const {
    const faiss::MetricType metric = index.metric_type;
    const Results results = search(index, queries, k);
    expect_well_formed(results, metric);
    primaries_->nprobe = seconds_->nprobe = index.nprobe;
    std::vector<Results> stock;
    for (const faiss::IndexIVF* part : {primaries_.get(), seconds_.get()}) {
        // the best k of each contain the best k of both
        const idx_t all = std::max<idx_t>(1, part->ntotal);
        stock.push_back(
                search(*part, queries, selected ? all : std::min(k, all)));
    }

    const idx_t n = queries.size() / index.d;
    for (idx_t i = 0; i < n; i++) {
        std::map<idx_t, float> best;
        for (const Results& part : stock) {
            for (idx_t j = i * part.k; j < (i + 1) * part.k; j++) {
                const idx_t id = part.labels[j];
                const float distance = part.distances[j];
                if (id == -1 || (selected && !selected(id))) {
                    continue;
                }
                auto [entry, is_new] = best.emplace(id, distance);
                if (!is_new && better(distance, entry->second, metric)) {
                    entry->second = distance;
                }
            }
        }
        std::vector<float> distances;
        for (auto [id, distance] : best) {
            distances.push_back(distance);
        }
        std::sort(distances.begin(), distances.end(), [&](float a, float b) {
            return better(a, b, metric);
        });
        for (idx_t j = 0; j < k; j++) {
            const idx_t id = results.labels[i * k + j];
            const float distance = results.distances[i * k + j];
            if (j >= idx_t(distances.size())) {
                ASSERT_EQ(id, -1);
                continue;
            }
            ASSERT_EQ(distance, distances[j]) << "query " << i << ", " << j;
            ASSERT_TRUE(best.count(id)) << "id " << id;
            ASSERT_EQ(distance, best[id]);
        }
    }
}

void Oracle::expect_equal_range(
        const faiss::IndexIVF& index,
        const std::vector<float>& queries,
        float radius) const {
    primaries_->nprobe = seconds_->nprobe = index.nprobe;
    auto results = range_search(index, queries, radius);
    auto first = range_search(*primaries_, queries, radius);
    auto second = range_search(*seconds_, queries, radius);
    for (size_t i = 0; i < results.size(); i++) {
        std::map<idx_t, float> best(first[i].begin(), first[i].end());
        for (auto [id, distance] : second[i]) {
            auto [entry, is_new] = best.emplace(id, distance);
            if (!is_new && better(distance, entry->second, index.metric_type)) {
                entry->second = distance;
            }
        }
        const std::vector<std::pair<idx_t, float>> expected(
                best.begin(), best.end());
        ASSERT_EQ(results[i], expected) << "query " << i;
    }
}

std::string message_of(const std::function<void()>& f) {
    try {
        f();
    } catch (const faiss::FaissException& error) {
        return error.what();
    }
    ADD_FAILURE() << "no exception";
    return "";
}

} // namespace faiss_flashgmm::testing
