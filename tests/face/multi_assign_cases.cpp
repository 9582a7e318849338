#include "face/multi_assign_cases.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>

#include <faiss/IndexFlat.h>
#include <faiss/impl/AuxIndexStructures.h>
#include <faiss/impl/FaissException.h>
#include <faiss/invlists/BlockInvertedLists.h>

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

namespace {

bool is_fast_scan(Codec codec) {
    return codec == Codec::fast_scan || codec == Codec::fast_scan_residuals ||
            codec == Codec::rabitq_fast_scan;
}

} // namespace

Offer offer_of(Codec codec) {
    Offer offer;
    if (is_fast_scan(codec)) {
        const bool recent = FAISS_FLASHGMM_FAST_SCAN_TAKES_PARAMETERS;
        offer.parameters = recent;
        offer.max_codes = recent && codec != Codec::rabitq_fast_scan;
        offer.range = recent && codec != Codec::rabitq_fast_scan;
        offer.negative_ids = codec != Codec::rabitq_fast_scan;
        offer.pairs = offer.range_given_lists = offer.search1 = false;
        offer.blocks = true;
    }
    return offer;
}

std::string Case::name() const {
    const char* codecs[] = {
            "flat",
            "sq8",
            "sq6_without_residuals",
            "pq",
            "pq_without_residuals",
            "fast_scan",
            "fast_scan_residuals",
            "rabitq",
            "rabitq_fast_scan"};
    const char* policies[] = {"single", "posterior", "nearest"};
    return std::string(codecs[int(codec)]) +
            (metric == faiss::METRIC_L2 ? "_l2_" : "_ip_") +
            policies[int(policy)];
}

namespace {

std::vector<Codec> all_codecs() {
    std::vector<Codec> codecs = {
            Codec::flat,
            Codec::sq8,
            Codec::sq6_without_residuals,
            Codec::pq,
            Codec::pq_without_residuals,
            Codec::fast_scan,
            Codec::fast_scan_residuals};
    if (FAISS_FLASHGMM_HAS_RABITQ) {
        codecs.push_back(Codec::rabitq);
    }
    if (FAISS_FLASHGMM_HAS_RABITQ_FAST_SCAN) {
        codecs.push_back(Codec::rabitq_fast_scan);
    }
    return codecs;
}

} // namespace

std::vector<Case> all_cases() {
    std::vector<Case> cases;
    for (Codec codec : all_codecs()) {
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
    std::vector<Case> cases;
    for (const Case& c : std::vector<Case>{
                 {Codec::flat, l2, AssignPolicy::posterior},
                 {Codec::flat, ip, AssignPolicy::nearest},
                 {Codec::sq8, l2, AssignPolicy::nearest},
                 {Codec::sq6_without_residuals, ip, AssignPolicy::posterior},
                 {Codec::pq, l2, AssignPolicy::posterior},
                 {Codec::pq_without_residuals, ip, AssignPolicy::posterior},
                 {Codec::fast_scan, l2, AssignPolicy::posterior},
                 {Codec::fast_scan_residuals, ip, AssignPolicy::nearest},
                 {Codec::rabitq, l2, AssignPolicy::nearest},
                 {Codec::rabitq_fast_scan, ip, AssignPolicy::posterior}}) {
        const std::vector<Codec> offered = all_codecs();
        if (std::count(offered.begin(), offered.end(), c.codec)) {
            cases.push_back(c);
        }
    }
    return cases;
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
    return info.param.name();
}

namespace {

using Made = std::unique_ptr<faiss::IndexIVF>;

template <class Pq>
Made make_pq(faiss::Index* quantizer, int d, int nlist, const Case& c) {
    const bool fast_scan = is_fast_scan(c.codec);
    auto ivf = std::make_unique<IndexIVFMultiAssign<Pq>>(
            quantizer,
            d,
            nlist,
            kSubquantizers,
            fast_scan ? 4 : kBits,
            c.metric);
    ivf->by_residual =
            c.codec == Codec::pq || c.codec == Codec::fast_scan_residuals;
    ivf->pq.cp.min_points_per_centroid = 1;
    return ivf;
}

Made make_sq(
        faiss::Index* quantizer,
        int d,
        int nlist,
        const Case& c,
        faiss::ScalarQuantizer::QuantizerType type) {
    return std::make_unique<IndexIVFScalarQuantizerMultiAssign>(
            quantizer, d, nlist, type, c.metric, c.codec == Codec::sq8);
}

Made make_codec(faiss::Index* quantizer, int d, int nlist, const Case& c) {
    switch (c.codec) {
        case Codec::flat:
            return std::make_unique<IndexIVFFlatMultiAssign>(
                    quantizer, d, nlist, c.metric);
        case Codec::sq8:
            return make_sq(
                    quantizer, d, nlist, c, faiss::ScalarQuantizer::QT_8bit);
        case Codec::sq6_without_residuals:
            return make_sq(
                    quantizer, d, nlist, c, faiss::ScalarQuantizer::QT_6bit);
        case Codec::pq:
        case Codec::pq_without_residuals:
            return make_pq<faiss::IndexIVFPQ>(quantizer, d, nlist, c);
        case Codec::fast_scan:
        case Codec::fast_scan_residuals:
            return make_pq<faiss::IndexIVFPQFastScan>(quantizer, d, nlist, c);
#if FAISS_FLASHGMM_HAS_RABITQ
        case Codec::rabitq:
            return std::make_unique<IndexIVFRaBitQMultiAssign>(
                    quantizer, d, nlist, c.metric);
#endif
#if FAISS_FLASHGMM_HAS_RABITQ_FAST_SCAN
        case Codec::rabitq_fast_scan:
            return std::make_unique<IndexIVFRaBitQFastScanMultiAssign>(
                    quantizer, d, nlist, c.metric);
#endif
        default:
            return nullptr;
    }
}

} // namespace

MultiIndex make_untrained(const Case& c, int d, int nlist) {
    MultiIndex index;
    index.ivf = make_codec(new faiss::IndexFlat(d, c.metric), d, nlist, c);
    index.multi = dynamic_cast<IVFMultiAssign*>(index.ivf.get());
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

namespace {

template <class Base>
std::unique_ptr<faiss::IndexIVF> empty_copy(Base& index) {
#if !FAISS_FLASHGMM_AT_LEAST(1, 15, 0)
    if constexpr (requires { index.precomputed_table.tab; }) {
        if (index.precomputed_table.size() == 0) {
            index.precomputed_table.tab.resize(1); // memcpy from null
        }
    }
#endif
    auto copy = std::make_unique<Base>(index);
    copy->own_fields = copy->own_invlists = false;
    const auto* blocks =
            dynamic_cast<const faiss::BlockInvertedLists*>(index.invlists);
    if (blocks) {
        copy->replace_invlists(
                new faiss::BlockInvertedLists(
                        index.nlist, blocks->n_per_block, blocks->block_size),
                true);
    } else {
        copy->replace_invlists(
                new faiss::ArrayInvertedLists(index.nlist, index.code_size),
                true);
    }
#if FAISS_FLASHGMM_HAS_FINE_QUANTIZER
    if constexpr (std::is_base_of_v<faiss::IndexIVFFastScan, Base>) {
        copy->init_code_packer();
        if constexpr (requires { copy->pq; }) {
            copy->fine_quantizer = &copy->pq;
        } else {
            copy->fine_quantizer = &copy->rabitq;
        }
    }
#endif
    copy->direct_map = faiss::DirectMap();
    copy->ntotal = 0;
    copy->parallel_mode = 0;
    return copy;
}

/// Assigns rows to lists that are given.
struct GivenLists : faiss::Index {
    const faiss::Index& centroids;
    const std::vector<idx_t>& lists;
    GivenLists(const faiss::Index& quantizer, const std::vector<idx_t>& given)
            : faiss::Index(quantizer.d, quantizer.metric_type),
              centroids(quantizer),
              lists(given) {
        ntotal = quantizer.ntotal;
    }
    void assign(idx_t n, const float*, idx_t* labels, idx_t) const override {
        ASSERT_EQ(n, idx_t(lists.size()));
        std::copy(lists.begin(), lists.end(), labels);
    }
    void reconstruct(idx_t list, float* row) const override {
        centroids.reconstruct(list, row);
    }
    void add(idx_t, const float*) override {}
    void reset() override {}
    void search(
            idx_t,
            const float*,
            idx_t,
            float*,
            idx_t*,
            const faiss::SearchParameters*) const override {}
};

} // namespace

std::unique_ptr<faiss::IndexIVF> stock_twin(faiss::IndexIVF& index) {
    std::unique_ptr<faiss::IndexIVF> twin;
    as_its_type(index, [&]<class Base>(IndexIVFMultiAssign<Base>& multi) {
        twin = empty_copy<Base>(multi);
    });
    return twin;
}

void add_to_lists(
        faiss::IndexIVF& stock,
        const std::vector<float>& rows,
        const std::vector<idx_t>& ids,
        const std::vector<idx_t>& lists) {
    faiss::Index* quantizer = stock.quantizer;
    GivenLists given(*quantizer, lists);
    stock.quantizer = &given;
    stock.add_with_ids(ids.size(), rows.data(), ids.data());
    stock.quantizer = quantizer;
}

void set_direct_map_type(faiss::IndexIVF& index, faiss::DirectMap::Type type) {
    if (dynamic_cast<IVFMultiAssign*>(&index)) {
        as_its_type(
                index, [&](auto& multi) { multi.set_direct_map_type(type); });
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
        : has_ties_(!dynamic_cast<faiss::IndexIVFFlat*>(&*index)),
          fast_scan_(dynamic_cast<faiss::IndexIVFFastScan*>(&*index)) {
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
        parts_.push_back(stock_twin(*index));
        if (!part_ids.empty()) {
            add_to_lists(*parts_.back(), part_rows, part_ids, part_lists);
        }
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
    std::vector<Results> stock;
    for (const auto& part : parts_) {
        part->nprobe = index.nprobe;
        // the best k of each contain the best k of all, but for ties
        const idx_t all = std::max<idx_t>(1, part->ntotal);
        stock.push_back(
                search(*part,
                       queries,
                       selected || has_ties_ ? all : std::min(k, all)));
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
            // coarse distances depend on how many queries come at once
            const float error = fast_scan_ ? 1e-5f * std::abs(distances[j]) : 0;
            ASSERT_NEAR(distance, distances[j], error)
                    << "query " << i << ", " << j;
            ASSERT_TRUE(best.count(id)) << "id " << id;
            ASSERT_NEAR(distance, best[id], error);
        }
    }
}

void Oracle::expect_equal_range(
        const faiss::IndexIVF& index,
        const std::vector<float>& queries,
        float radius) const {
    const auto results = range_search(index, queries, radius);
    std::vector<std::map<idx_t, float>> best(results.size());
    for (const auto& part : parts_) {
        part->nprobe = index.nprobe;
        const auto found = range_search(*part, queries, radius);
        for (size_t i = 0; i < found.size(); i++) {
            for (auto [id, distance] : found[i]) {
                auto [entry, is_new] = best[i].emplace(id, distance);
                if (!is_new &&
                    better(distance, entry->second, index.metric_type)) {
                    entry->second = distance;
                }
            }
        }
    }
    for (size_t i = 0; i < results.size(); i++) {
        const std::vector<std::pair<idx_t, float>> expected(
                best[i].begin(), best[i].end());
        ASSERT_EQ(results[i], expected) << "query " << i;
    }
}

std::string message_of(const std::function<void()>& f) {
    try {
        f();
    } catch (const std::exception& error) {
        // FAISS since 1.15 hands on what it caught as it is
        EXPECT_TRUE(
                dynamic_cast<const faiss::FaissException*>(&error) ||
                FAISS_FLASHGMM_AT_LEAST(1, 15, 0))
                << error.what();
        return error.what();
    }
    ADD_FAILURE() << "no exception";
    return "";
}

} // namespace faiss_flashgmm::testing
