#include <faiss_flashgmm/em/EMSolver.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>

#include <faiss_flashgmm/em/Initialization.h>
#include <faiss_flashgmm/em/MStep.h>
#include <faiss_flashgmm/em/RowMoments.h>
#include <faiss_flashgmm/utils/Error.h>
#include <faiss_flashgmm/utils/Timer.h>

namespace faiss_flashgmm {

namespace {

/// Variance, relative to the global one, at which responsibilities are those
/// of k-means: rows share components only within 1e-4 of a tie.
constexpr double kHardVariance = 1e-5;

/// Rows a component that pull a first variance to the mean one, so that
/// components of few rows do not start out collapsed.
constexpr double kVariancePriorRows = 2;

using S = SufficientStats;

/// One fit: the state that its stages share.
class Fit {
   public:
    Fit(Backend& backend,
        const EMOptions& options,
        Communicator& communicator,
        RowSource& all_rows,
        int64_t k)
            : backend_(backend),
              options_(options),
              communicator_(communicator),
              all_rows_(all_rows),
              k_(k),
              d_(all_rows.dim()),
              chunk_rows_(
                      options.chunk_rows > 0
                              ? options.chunk_rows
                              : backend.preferred_chunk(k, all_rows.dim())) {
        const int64_t limit = options.max_rows_per_component;
        const int64_t n = all_rows.size();
        backend_.begin_fit(limit > 0 ? std::min(n, k * limit) : n, k, d_);
    }
    ~Fit() {
        backend_.end_fit();
    }

    EMResult run(const Mixture* initial);

   private:
    /// The sources of a RowKey.
    enum Source : int64_t { kAllRows, kSampledRows, kFirstSample };

    RowMoments check_rows();
    void choose_rows();
    Source source_of(const RowSource& rows) const;
    Rows read(RowSource& rows, int64_t begin);
    Mixture initialize(const Mixture* initial, uint64_t seed);
    Mixture draw_means(
            const Mixture* initial,
            RowSource& sample,
            uint64_t seed);
    void run_redo(int redo, Mixture mixture, EMResult& best);
    void add_rows(RowSource& rows);
    const SufficientStats& e_step(RowSource& rows, const Mixture& mixture);
    MStepReport iterate(
            uint64_t seed,
            Mixture& mixture,
            Backend::Sums& sums,
            double& seconds_e_step);
    void estimate_spread(const SufficientStats& stats, Mixture& mixture);
    void report(int64_t rows_done, int64_t rows_total);

    Backend& backend_;
    const EMOptions& options_;
    Communicator& communicator_;
    RowSource& all_rows_;
    const int64_t k_;
    const int64_t d_;
    const int64_t chunk_rows_;

    Conditioning conditioning_;
    std::unique_ptr<SampledRows> sampled_;
    RowSource* rows_ = &all_rows_; ///< what is trained on
    bool advanced_ = false;        ///< the backend has the mixture, and begun
    int64_t total_rows_ = 0;       ///< of all peers
    double best_log_likelihood_ = 0;

    Progress progress_;
    Timer stage_timer_;
};

void Fit::report(int64_t rows_done, int64_t rows_total) {
    if (!options_.progress) {
        return;
    }
    progress_.rows_done = rows_done;
    progress_.rows_total = rows_total;
    progress_.elapsed_seconds = stage_timer_.seconds();
    const double iterations = progress_.iteration +
            (rows_total > 0 ? double(rows_done) / double(rows_total) : 1.0);
    progress_.eta_seconds = iterations > 0 ? progress_.elapsed_seconds *
                    std::max(0.0, progress_.niter / iterations - 1)
                                           : -1;
    options_.progress(progress_);
}

RowMoments Fit::check_rows() {
    progress_ = {};
    progress_.stage = Progress::Stage::check_rows;
    stage_timer_ = {};

    const int64_t n = all_rows_.size();
    std::vector<double> pivot(d_, 0.0);
    if (n > 0) {
        std::vector<float> row(d_);
        const int64_t first = 0;
        all_rows_.gather({&first, 1}, row.data(), nullptr);
        for (int64_t j = 0; j < d_; j++) {
            pivot[j] = std::isfinite(row[j]) ? row[j] : 0;
        }
    }
    communicator_.broadcast(pivot, 0);

    RowMoments moments(std::move(pivot));
    std::string error;
    for (int64_t begin = 0; begin < n && error.empty(); begin += chunk_rows_) {
        const Rows rows = read(all_rows_, begin);
        error = backend_.add_moments(begin, rows, moments);
        report(begin + rows.n, n);
    }
    double failures = error.empty() ? 0 : 1;
    communicator_.all_reduce_sum({&failures, 1}); // peers are waiting
    FLASHGMM_THROW_IF_NOT_FMT(error.empty(), "%s", error.c_str());
    FLASHGMM_THROW_IF_NOT_FMT(
            failures == 0, "the rows of another peer are not valid");
    communicator_.all_reduce_sum(moments.flat());
    FLASHGMM_THROW_IF_NOT_FMT(
            moments.weighted_rows() >= double(k_),
            "%ld of %ld rows have a positive weight; k = %ld components need "
            "at least as many",
            long(moments.weighted_rows()),
            long(moments.rows()),
            long(k_));
    return moments;
}

void Fit::choose_rows() {
    const int64_t limit = options_.max_rows_per_component;
    if (limit == 0 || total_rows_ <= k_ * limit) {
        return;
    }
    const double share = double(k_ * limit) / double(total_rows_);
    const int64_t count = communicator_.size() == 1
            ? k_ * limit
            : int64_t(std::ceil(share * double(all_rows_.size())));
    sampled_ = std::make_unique<SampledRows>(
            all_rows_, sample_indices(all_rows_.size(), count, options_.seed));
    backend_.forget_rows(kAllRows);
    rows_ = sampled_.get();
}

Fit::Source Fit::source_of(const RowSource& rows) const {
    return &rows == &all_rows_        ? kAllRows
            : &rows == sampled_.get() ? kSampledRows
                                      : kFirstSample;
}

/// The next chunk, or its key alone if the backend has it.
Rows Fit::read(RowSource& source, int64_t begin) {
    const int64_t count = std::min(chunk_rows_, source.size() - begin);
    const RowKey key{source_of(source), begin};
    Rows rows;
    if (!backend_.has_rows(key)) {
        rows = source.read(begin, count);
    }
    rows.n = count;
    rows.key = key;
    return rows;
}

void Fit::add_rows(RowSource& source) {
    const int64_t n = source.size();
    report(0, n);
    for (int64_t begin = 0; begin < n; begin += chunk_rows_) {
        const Rows rows = read(source, begin);
        backend_.add_rows(rows);
        report(begin + rows.n, n);
    }
}

const SufficientStats& Fit::e_step(RowSource& rows, const Mixture& mixture) {
    backend_.begin(mixture, conditioning_);
    add_rows(rows);
    SufficientStats& stats = backend_.finish();
    communicator_.all_reduce_sum(stats.flat());
    return stats;
}

/** One EM iteration, by the backend alone where it can.
 *
 * @param mixture   in and out; out of date while advanced_
 * @param sums      output: what is not per component
 */
MStepReport Fit::iterate(
        uint64_t seed,
        Mixture& mixture,
        Backend::Sums& sums,
        double& seconds_e_step) {
    Timer timer;
    MStepReport report;
    if (!advanced_) {
        backend_.begin(mixture, conditioning_);
    }
    add_rows(*rows_);
    if (communicator_.size() == 1 && backend_.advance(options_, sums, report)) {
        advanced_ = true;
        seconds_e_step = timer.seconds();
        return report;
    }
    if (advanced_) {
        backend_.read_mixture(mixture);
        advanced_ = false;
    }
    SufficientStats& stats = backend_.finish();
    communicator_.all_reduce_sum(stats.flat());
    seconds_e_step = timer.seconds();
    for (size_t i = 0; i < sums.size(); i++) {
        sums[i] = stats.scalar(S::Scalar(i));
    }
    return maximize(stats, options_, conditioning_, seed, mixture);
}

Mixture Fit::draw_means(
        const Mixture* initial,
        RowSource& sample,
        uint64_t seed) {
    Mixture mixture(k_, d_);
    const int64_t given = initial ? initial->k : 0;
    if (initial) {
        std::copy(
                initial->means.begin(),
                initial->means.end(),
                mixture.means.begin());
    }
    if (communicator_.rank() == 0 && given < k_) {
        if (options_.init == Initialization::kmeans_pp) {
            const int64_t n = sample.size();
            backend_.draw_kmeans_pp(
                    sample,
                    given,
                    k_,
                    seed,
                    mixture.means.data(),
                    [&](int64_t count) { report(n * count / k_, n); });
        } else {
            draw_random_rows(sample, given, k_, seed, mixture.means.data());
        }
    }
    if (communicator_.size() > 1) {
        std::vector<double> means(mixture.means.begin(), mixture.means.end());
        communicator_.broadcast(means, 0);
        std::copy(means.begin(), means.end(), mixture.means.begin());
    }
    mixture = conditioning_.to_conditioned(mixture);
    const int64_t frozen = options_.frozen_means;
    constrain_means(
            options_.constraint,
            conditioning_,
            k_ - frozen,
            d_,
            mixture.mean(frozen));
    return mixture;
}

void Fit::estimate_spread(const SufficientStats& stats, Mixture& mixture) {
    double total = 0;
    double squared = 0;
    for (int64_t c = 0; c < k_; c++) {
        total += stats.counts()[c];
        squared += stats.squared()[c];
    }
    const double floor =
            options_.variance_floor * conditioning_.global_variance;
    const double tied = std::max(floor, squared / (double(d_) * total));
    // Weights may have any unit: a prior row weighs as much as a mean row.
    const double prior = kVariancePriorRows * total / stats.scalar(S::kRows);
    for (int64_t c = 0; c < k_; c++) {
        const double count = stats.counts()[c] + prior;
        mixture.variances[c] = options_.variance == VarianceModel::tied
                ? tied
                : (stats.squared()[c] / double(d_) + prior * tied) / count;
        mixture.weights[c] = options_.weights == WeightModel::uniform
                ? 1 / double(k_)
                : count / (total + double(k_) * prior);
    }
}

Mixture Fit::initialize(const Mixture* initial, uint64_t seed) {
    if (initial && initial->k == k_ && !initial->variances.empty()) {
        return conditioning_.to_conditioned(*initial);
    }
    const int64_t sample_rows = std::max<int64_t>(
            k_ * options_.init_rows_per_component / communicator_.size(), 1);
    SampledRows sample(
            *rows_, sample_indices(rows_->size(), sample_rows, seed));
    const bool lloyd =
            options_.init == Initialization::lloyd && initial == nullptr;

    progress_.stage = Progress::Stage::initialize;
    progress_.niter = 1 + (lloyd ? options_.init_iterations : 0);
    progress_.iteration = 0;
    stage_timer_ = {};

    Mixture mixture = draw_means(initial, sample, seed);
    const std::vector<double> hard(
            k_, kHardVariance * conditioning_.global_variance);
    const std::vector<double> equal(k_, 1 / double(k_));
    while (true) {
        mixture.variances = hard;
        mixture.weights = equal;
        const SufficientStats& stats = e_step(sample, mixture);
        if (progress_.iteration + 1 == progress_.niter) {
            estimate_spread(stats, mixture);
            backend_.forget_rows(kFirstSample);
            return mixture;
        }
        maximize(
                stats,
                options_,
                conditioning_,
                seed + uint64_t(progress_.iteration),
                mixture);
        progress_.iteration++;
    }
}

void Fit::run_redo(int redo, Mixture mixture, EMResult& best) {
    progress_.stage = Progress::Stage::em;
    progress_.niter = options_.niter;
    progress_.iteration = 0;
    stage_timer_ = {};

    const double offset = conditioning_.log_density_offset();
    const double square_unit = conditioning_.scale * conditioning_.scale;
    const uint64_t seed = options_.seed + uint64_t(redo);
    bool converged = false;
    double log_likelihood = 0;
    for (int iteration = 0; iteration < options_.niter && !converged;
         iteration++) {
        Timer timer;
        progress_.iteration = iteration;
        IterationStats s;
        Backend::Sums sums{};
        const MStepReport report =
                iterate((seed << 20) + uint64_t(iteration),
                        mixture,
                        sums,
                        s.seconds_e_step);
        const double weight = sums[S::kWeight];
        s.redo = redo;
        s.iteration = iteration;
        s.log_likelihood = sums[S::kLogLikelihood] / weight + offset;
        s.objective = sums[S::kObjective] * square_unit;
        s.dropped_mass = sums[S::kDroppedMass] / weight;
        s.pairs_per_row = sums[S::kPairs] / sums[S::kRows];
        s.imbalance = report.imbalance;
        s.empty = report.empty;
        s.revived = report.revived;
        s.at_floor = report.at_floor;
        s.moved_mass = report.moved_mass;
        s.seconds = timer.seconds();
        best.iterations.push_back(s);
        if (options_.on_iteration) {
            options_.on_iteration(s);
        }

        const double gain = s.log_likelihood - log_likelihood;
        converged = options_.tol > 0 && iteration > 0 && s.revived == 0 &&
                gain < options_.tol * std::max(1.0, std::abs(s.log_likelihood));
        log_likelihood = s.log_likelihood;
        progress_.log_likelihood = log_likelihood;
    }
    if (advanced_) {
        backend_.read_mixture(mixture);
        advanced_ = false;
    }
    if (redo == 0 || log_likelihood > best_log_likelihood_) {
        best_log_likelihood_ = log_likelihood;
        best.mixture = std::move(mixture);
        best.best_redo = redo;
        best.converged = converged;
    }
}

EMResult Fit::run(const Mixture* initial) {
    const RowMoments moments = check_rows();
    total_rows_ = int64_t(moments.rows());
    // Unit means are unit in the user's units: the origin must stay.
    conditioning_ = Conditioning::from_moments(
            moments.mean(),
            moments.variance(),
            options_.constraint != MeanConstraint::unit);
    choose_rows();

    EMResult result;
    for (int redo = 0; redo < options_.nredo; redo++) {
        progress_.redo = redo;
        progress_.nredo = options_.nredo;
        run_redo(
                redo,
                initialize(initial, options_.seed + uint64_t(redo)),
                result);
    }
    result.mixture = conditioning_.to_user(result.mixture);
    constrain_means( // again, since the change of units rounds
            options_.constraint,
            Conditioning::identity(d_),
            k_ - options_.frozen_means,
            d_,
            result.mixture.mean(options_.frozen_means));
    if (initial) { // frozen means come back bit for bit
        std::copy_n(
                initial->means.begin(),
                options_.frozen_means * d_,
                result.mixture.means.begin());
    }
    result.conditioning = conditioning_;
    result.distinct_means = result.mixture.distinct_means();
    double used = double(rows_->size());
    communicator_.all_reduce_sum({&used, 1});
    result.rows_used = int64_t(used);
    return result;
}

void check_initial(
        const Mixture& initial,
        const EMOptions& options,
        int64_t k,
        int64_t d) {
    FLASHGMM_THROW_IF_NOT_FMT(
            initial.d == d && initial.k >= 1 && initial.k <= k,
            "%ld initial means of dimension %ld for k = %ld components of "
            "dimension %ld",
            long(initial.k),
            long(initial.d),
            long(k),
            long(d));
    if (initial.variances.empty()) {
        Mixture means_only(initial.k, initial.d);
        means_only.means = initial.means;
        means_only.check();
    } else {
        initial.check();
    }
    FLASHGMM_THROW_IF_NOT_FMT(
            options.frozen_means <= initial.k,
            "%ld means are to be frozen, %ld are given",
            long(options.frozen_means),
            long(initial.k));
}

} // namespace

EMSolver::EMSolver(Backend& backend, EMOptions options)
        : backend_(backend),
          options_(std::move(options)),
          communicator_(self_) {}

EMSolver::EMSolver(
        Backend& backend,
        EMOptions options,
        Communicator& communicator)
        : backend_(backend),
          options_(std::move(options)),
          communicator_(communicator) {}

EMResult EMSolver::fit(RowSource& rows, int64_t k, const Mixture* initial) {
    options_.check();
    FLASHGMM_THROW_IF_NOT_FMT(k >= 1, "k = %ld must be at least 1", long(k));
    FLASHGMM_THROW_IF_NOT_FMT(
            rows.dim() >= 1, "rows of dimension %ld", long(rows.dim()));
    if (communicator_.size() == 1) {
        FLASHGMM_THROW_IF_NOT_FMT(
                rows.size() >= k,
                "n = %ld rows are too few for k = %ld components",
                long(rows.size()),
                long(k));
    }
    FLASHGMM_THROW_IF_NOT_FMT(
            options_.frozen_means == 0 || initial,
            "%ld means are to be frozen, none are given",
            long(options_.frozen_means));
    if (initial) {
        check_initial(*initial, options_, k, rows.dim());
    }
    return Fit(backend_, options_, communicator_, rows, k).run(initial);
}

} // namespace faiss_flashgmm
