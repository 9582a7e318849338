#include <faiss_flashgmm/AutoAssign.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <typeinfo>

#include <faiss/IndexFlat.h>
#include <faiss/impl/FaissAssert.h>

#include <faiss_flashgmm/IVFMultiAssign.h>
#include <faiss_flashgmm/ScanCurve.h>
#include <faiss_flashgmm/fields.h>
#include <faiss_flashgmm/ivf_checks.h>
#include <faiss_flashgmm/utils/Timer.h>

namespace faiss_flashgmm {

namespace {

std::string text(const char* format, double value) {
    char out[64];
    std::snprintf(out, sizeof(out), format, value);
    return out;
}

/// Rows to store, queries, and the rows that these should find.
struct Sample {
    idx_t n = 0;
    std::vector<float> rows;
    idx_t n_queries = 0;
    std::vector<float> queries;
    std::vector<idx_t> neighbors;
};

Sample draw_sample(
        const faiss::IndexIVF& index,
        idx_t n,
        const float* x,
        const AutoAssignOptions& options,
        idx_t n_queries,
        const float* queries) {
    const idx_t d = index.d;
    Sample sample;
    auto append = [&](std::vector<float>& to, idx_t row) {
        to.insert(to.end(), x + row * d, x + (row + 1) * d);
    };
    const idx_t held_out = queries ? 0 : std::min(options.held_out, n / 2);
    const idx_t taken = std::min(n, options.max_rows + held_out);
    idx_t queries_taken = 0;
    for (idx_t i = 0; i < taken; i++) {
        const idx_t row = i * n / taken;
        const bool aside = queries_taken < (i + 1) * held_out / taken;
        append(aside ? sample.queries : sample.rows, row);
        queries_taken += aside;
    }
    if (queries) {
        sample.queries.assign(queries, queries + n_queries * d);
    }
    sample.n = sample.rows.size() / d;
    sample.n_queries = sample.queries.size() / d;

    faiss::IndexFlat exact(d, index.metric_type);
    exact.add(sample.n, sample.rows.data());
    std::vector<float> distances(sample.n_queries * options.k);
    sample.neighbors.resize(distances.size());
    exact.search(
            sample.n_queries,
            sample.queries.data(),
            options.k,
            distances.data(),
            sample.neighbors.data());
    return sample;
}

/// Policies to try, one list first.
std::vector<MultiAssign> policies(
        const MultiAssign& details,
        const AutoAssignOptions& options) {
    MultiAssign assigner = details;
    assigner.learned = {};
    assigner.max_inflation = 0;
    assigner.policy = AssignPolicy::single;
    std::vector<MultiAssign> all = {assigner};
    if (options.max_inflation == 1 || options.max_entries == 1) {
        return all;
    }
    assigner.max_entries = 2;
    assigner.max_inflation = options.max_inflation;
    for (AssignPolicy policy : {AssignPolicy::posterior, AssignPolicy::soar}) {
        assigner.policy = policy;
        all.push_back(assigner);
    }
    assigner.policy = AssignPolicy::demand;
    assigner.demand_parameters.recall = options.recall;
    for (int entries = 2; entries <= std::min(options.max_entries, 3);
         entries++) {
        assigner.max_entries = entries;
        for (double part : {1.0, 0.5}) {
            assigner.max_inflation = 1 + part * (options.max_inflation - 1);
            all.push_back(assigner);
        }
    }
    return all;
}

/** Fills in what a policy costs over these centroids.
 *
 * @param demand    over these centroids; learned if it is empty
 */
void measure(
        const faiss::Index& quantizer,
        const Mixture& mixture,
        const Sample& sample,
        double recall,
        Demand& demand,
        AssignTrial& trial) {
    MultiAssign assigner = trial.assigner;
    if (assigner.policy == AssignPolicy::demand) {
        if (demand.empty()) {
            demand.learn(
                    quantizer,
                    assigner.demand_parameters,
                    sample.n,
                    sample.rows.data(),
                    0,
                    nullptr);
        }
        assigner.learned.demand = demand;
        assigner.learned.settings = assigner.settings();
    }
    const int width = assigner.max_lists();
    std::vector<idx_t> primary(sample.n), extra(sample.n * (width - 1));
    quantizer.assign(sample.n, sample.rows.data(), primary.data());
    assigner.choose(
            quantizer,
            mixture,
            sample.n,
            sample.rows.data(),
            primary.data(),
            true,
            extra.data());
    std::vector<idx_t> lists;
    for (idx_t i = 0; i < sample.n; i++) {
        lists.push_back(primary[i]);
        lists.insert(
                lists.end(),
                extra.begin() + i * (width - 1),
                extra.begin() + (i + 1) * (width - 1));
    }
    const ScanCurve curve = measure_scans(
            quantizer,
            sample.n,
            width,
            lists.data(),
            sample.n_queries,
            sample.queries.data(),
            int(sample.neighbors.size() / sample.n_queries),
            sample.neighbors.data());
    trial.entries_per_vector = 1 +
            double(extra.size() -
                   std::count(extra.begin(), extra.end(), idx_t(-1))) /
                    double(sample.n);
    trial.scanned = curve.scanned_at(recall);
    trial.nprobe = curve.probes_at(recall);
}

} // namespace

void AutoAssignOptions::check() const {
    FAISS_THROW_IF_NOT_FMT(
            recall > 0 && recall <= 1,
            "recall is %g, must be above 0 and at most 1",
            recall);
    FAISS_THROW_IF_NOT_FMT(k >= 1, "k is %d, must be >= 1", k);
    FAISS_THROW_IF_NOT_FMT(
            max_inflation >= 1 && max_inflation <= 8,
            "max_inflation is %g, must be 1 to 8",
            max_inflation);
    FAISS_THROW_IF_NOT_FMT(
            max_entries >= 1 && max_entries <= 8,
            "max_entries is %d, must be 1 to 8",
            max_entries);
    FAISS_THROW_IF_NOT_FMT(
            max_rows >= 1, "max_rows is %ld, must be >= 1", long(max_rows));
    FAISS_THROW_IF_NOT_FMT(
            held_out >= 1, "held_out is %ld, must be >= 1", long(held_out));
    FAISS_THROW_IF_NOT_FMT(
            max_seconds >= 0, "max_seconds is %g, must be >= 0", max_seconds);
}

std::string AssignTrial::name() const {
    std::string out = kmeans_centroids
            ? "k-means"
            : name_of(variance) + ", " + name_of(weights);
    out += ": " + name_of(assigner.policy);
    if (assigner.max_inflation > 0) {
        out += text(" %.3g", assigner.max_inflation) +
                text(", %.0f entries", assigner.max_entries);
    }
    return out;
}

std::string AutoAssignResult::table() const {
    std::string out = std::to_string(rows) + " rows, " + std::to_string(nlist) +
            " lists; per query, for the wanted recall\n"
            "  entries  nprobe    scanned   gain\n";
    for (size_t i = 0; i < trials.size(); i++) {
        const AssignTrial& trial = trials[i];
        out += (i == best ? "* " : "  ") +
                text("%7.3f", trial.entries_per_vector) +
                text(" %7.1f", trial.nprobe) + text(" %10.0f", trial.scanned) +
                text(" %6.3f  ", trial.scan_gain) + trial.name() + "\n";
    }
    return out;
}

AutoAssignResult auto_assign(
        faiss::IndexIVF& index,
        idx_t n,
        const float* x,
        const AutoAssignOptions& options,
        idx_t n_queries,
        const float* queries) {
    options.check();
    auto* multi = dynamic_cast<IVFMultiAssign*>(&index);
    FAISS_THROW_IF_NOT_FMT(
            multi,
            "an index of type %s is not a multi-assign index",
            typeid(index).name());
    FAISS_THROW_IF_NOT_FMT(
            index.ntotal == 0,
            "the index holds %ld vectors: choose before adding",
            long(index.ntotal));
    FAISS_THROW_IF_NOT_FMT(
            n >= 2 * idx_t(index.nlist),
            "%ld rows are too few to try %zu lists on",
            long(n),
            index.nlist);
    FAISS_THROW_IF_NOT_FMT(
            !queries || n_queries > 0, "%ld queries", long(n_queries));
    multi->assigner.check();
    check_finite(n, index.d, x);
    check_finite(queries ? n_queries : 0, index.d, queries);

    Timer timer;
    const Sample sample = draw_sample(index, n, x, options, n_queries, queries);
    const bool has_centroids = index.quantizer->is_trained &&
            index.quantizer->ntotal == idx_t(index.nlist);
    AutoAssignResult result;
    result.rows = sample.n;
    result.nlist = has_centroids
            ? idx_t(index.nlist)
            : std::max<idx_t>(
                      2, std::llround(double(index.nlist) * sample.n / n));

    AssignTrial models[3];
    models[0].kmeans_centroids = true;
    models[1].variance = VarianceModel::tied;
    models[1].weights = WeightModel::uniform;
    models[2].variance = VarianceModel::per_component;
    models[2].weights = WeightModel::free;
    for (AssignTrial trial : models) {
        if (!result.trials.empty() &&
            (has_centroids ||
             (options.max_seconds > 0 &&
              timer.seconds() > options.max_seconds))) {
            break;
        }
        faiss::IndexFlat centroids(index.d, index.metric_type);
        Mixture mixture;
        Demand demand;
        const faiss::Index* quantizer = &centroids;
        if (has_centroids) {
            quantizer = index.quantizer;
            mixture = multi->mixture();
            trial.kmeans_centroids = multi->kmeans_centroids;
            trial.variance = multi->gmm.variance;
            trial.weights = multi->gmm.weights;
        } else if (trial.kmeans_centroids) {
            faiss::ClusteringParameters cp = index.cp;
            cp.spherical |= index.metric_type == faiss::METRIC_INNER_PRODUCT;
            faiss::Clustering(int(index.d), int(result.nlist), cp)
                    .train(sample.n, sample.rows.data(), centroids);
        } else {
            FlashGMMOptions gmm = multi->gmm;
            gmm.variance = trial.variance;
            gmm.weights = trial.weights;
            FlashGMMClustering clustering(
                    int(index.d), int(result.nlist), index.cp, gmm);
            clustering.train(sample.n, sample.rows.data(), centroids);
            mixture = clustering.mixture;
        }
        for (const MultiAssign& assigner : policies(multi->assigner, options)) {
            if (assigner.needs_mixture() && mixture.k == 0) {
                continue;
            }
            trial.assigner = assigner;
            measure(*quantizer, mixture, sample, options.recall, demand, trial);
            const double reference = result.trials.empty()
                    ? trial.scanned
                    : result.trials[0].scanned;
            trial.scan_gain = reference / trial.scanned;
            result.trials.push_back(trial);
            if (trial.scanned < result.trials[result.best].scanned) {
                result.best = result.trials.size() - 1;
            }
        }
    }

    const AssignTrial& best = result.trials[result.best];
    multi->kmeans_centroids = best.kmeans_centroids;
    multi->gmm.variance = best.variance;
    multi->gmm.weights = best.weights;
    multi->assigner = best.assigner;
    return result;
}

} // namespace faiss_flashgmm
