#include <faiss_flashgmm/tools/bench/searches.h>

#include <map>
#include <memory>
#include <utility>

#include <faiss/IndexIVFPQ.h>
#include <faiss/IndexRefine.h>
#include <faiss/impl/io.h>
#include <faiss/index_factory.h>
#include <faiss/index_io.h>

#include <faiss_flashgmm/MultiAssignCloner.h>
#include <faiss_flashgmm/index_tree.h>
#include <faiss_flashgmm/make_multi_assign.h>
#include <faiss_flashgmm/tools/bench/scans.h>
#include <faiss_flashgmm/utils/Error.h>
#include <faiss_flashgmm/utils/Timer.h>

namespace faiss_flashgmm {

namespace {

/// Candidates that RFlat compares, for each that is asked for.
constexpr float kRefined = 10;

/// Bytes of an index as FAISS stores it, without storing it.
int64_t stored_bytes(const faiss::Index& index) {
    struct Counter : faiss::IOWriter {
        int64_t bytes = 0;
        size_t operator()(const void*, size_t size, size_t count) override {
            bytes += int64_t(size * count);
            return count;
        }
    } counter;
    faiss::write_index(&index, &counter);
    return counter.bytes;
}

/// An empty stock index whose codec is trained.
struct Trained {
    std::unique_ptr<faiss::Index> index;
    double seconds = 0;
};

Trained train_codec(const BenchCase& bench, const SearchedIndex& what) {
    const BenchSet& set = bench.set;
    Trained trained;
    trained.index.reset(faiss::index_factory(
            int(set.base.d),
            format("IVF%lld,%s",
                   static_cast<long long>(bench.nlist),
                   what.codec.c_str())
                    .c_str(),
            set.files.metric));
    std::vector<float> means(bench.nlist * set.base.d);
    what.centroids->quantizer.reconstruct_n(0, bench.nlist, means.data());
    faiss::IndexIVF* ivf = extract_index_ivf(trained.index.get());
    ivf->quantizer->add(bench.nlist, means.data());
    if (auto* pq = dynamic_cast<faiss::IndexIVFPQ*>(ivf)) {
        // Most of the training, and of no use to these searches.
        pq->do_polysemous_training = false;
    }
    const Timer timer;
    trained.index->train(set.base.n, set.rows());
    trained.seconds = timer.seconds();
    return trained;
}

const LearnedPolicy& learn(
        const BenchSet& set,
        const SearchedIndex& what,
        LearnedPolicies& learned) {
    const auto [found, is_new] =
            learned.try_emplace({what.centroids, what.policy});
    LearnedPolicy& policy = found->second;
    if (is_new) {
        const Timer timer;
        policy.assigner = parse_policy(what.policy);
        policy.assigner.learn(
                what.centroids->quantizer,
                what.centroids->mixture,
                set.base.n,
                set.rows());
        policy.seconds = timer.seconds();
    }
    return policy;
}

struct Built {
    std::unique_ptr<faiss::Index> index;
    JsonObject row;
};

/// A filled index, in the stock type if it stores each vector once.
Built build(
        const BenchCase& bench,
        const SearchedIndex& what,
        const Trained& trained,
        const LearnedPolicy& policy) {
    const BenchSet& set = bench.set;
    const Centroids& centroids = *what.centroids;
    Built built;
    built.row = bench.key(centroids.name, what.policy, what.codec);
    built.index = clone_index(*trained.index);
    faiss::IndexIVF* ivf = extract_index_ivf(built.index.get());
    if (policy.assigner.policy != AssignPolicy::single) {
        IVFMultiAssign* multi = make_multi_assign(built.index, policy.assigner);
        if (centroids.mixture.k > 0) {
            multi->set_mixture(centroids.mixture);
        }
        ivf = extract_index_ivf(built.index.get());
    }
    const Timer timer;
    built.index->add(set.base.n, set.rows());
    const double add_seconds = timer.seconds();

    if (auto* refine = dynamic_cast<faiss::IndexRefine*>(built.index.get())) {
        refine->k_factor = kRefined;
    }
    const auto* multi = dynamic_cast<const IVFMultiAssign*>(ivf);
    built.row.add("stands_for", set.files.stands_for)
            .add("n", set.base.n)
            .add("d", set.base.d)
            .add("queries", set.queries.n)
            .add("entries_per_vector",
                 rounded(multi ? multi->entries_per_vector() : 1))
            .add("imbalance", rounded(ivf->invlists->imbalance_factor()))
            .add("bytes", stored_bytes(*built.index))
            .add("fit_seconds", rounded(centroids.seconds))
            .add("codec_seconds", rounded(trained.seconds))
            .add("learn_seconds", rounded(policy.seconds))
            .add("add_seconds", rounded(add_seconds));
    return built;
}

} // namespace

void bench_searches(
        const BenchCase& bench,
        const std::vector<SearchedIndex>& indexes,
        const SearchTiming& timing,
        LearnedPolicies& learned,
        BenchRows& rows) {
    // Policies over the same centroids share the codec.
    std::map<std::pair<const Centroids*, std::string>, Trained> codecs;
    std::vector<Built> built;
    std::vector<Searcher> searchers;
    std::vector<std::string> names;
    for (const SearchedIndex& what : indexes) {
        Trained& trained = codecs[{what.centroids, what.codec}];
        if (!trained.index) {
            trained = train_codec(bench, what);
        }
        built.push_back(
                build(bench, what, trained, learn(bench.set, what, learned)));
        faiss::Index* index = built.back().index.get();
        Searcher searcher;
        searcher.set_effort = [index](int64_t nprobe) {
            extract_index_ivf(index)->nprobe = nprobe;
        };
        searcher.search =
                [index](int64_t nq, const float* x, int k, idx_t* ids) {
                    std::vector<float> distances(nq * k);
                    index->search(nq, x, k, distances.data(), ids);
                };
        searchers.push_back(std::move(searcher));
        names.push_back(
                format("%-10s %5lld %4d  %-22s %-26s %-16s ",
                       bench.set.files.name.c_str(),
                       static_cast<long long>(bench.nlist),
                       bench.seed,
                       what.centroids->name.c_str(),
                       what.policy.c_str(),
                       what.codec.c_str()));
    }
    // Nobody makes lists to probe more than a quarter of them.
    const int64_t most = std::min(bench.nlist / 4, timing.max_nprobe);
    std::vector<int64_t> nprobes = {1};
    for (int64_t p = 2; p <= most; p *= 2) {
        nprobes.push_back(p);
    }
    time_searches(bench.set, nprobes, timing, searchers);
    for (size_t i = 0; i < built.size(); i++) {
        built[i].row.add("nprobe", searchers[i].efforts);
        searchers[i].add_to(built[i].row);
        rows.add(built[i].row, names[i] + summary(searchers[i]));
    }
}

} // namespace faiss_flashgmm
