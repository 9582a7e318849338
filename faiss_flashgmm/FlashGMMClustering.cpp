#include <faiss_flashgmm/FlashGMMClustering.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include <faiss/IndexScalarQuantizer.h>
#include <faiss/impl/AuxIndexStructures.h>
#include <faiss/impl/FaissAssert.h>

#include <faiss_flashgmm/cpu/CpuBackend.h>
#include <faiss_flashgmm/em/EMSolver.h>
#include <faiss_flashgmm/faiss_errors.h>
#include <faiss_flashgmm/utils/Error.h>

namespace faiss_flashgmm {

namespace {

/// Rows decoded by a codec, one chunk at a time.
class EncodedRows : public RowSource {
   public:
    EncodedRows(
            int64_t n,
            const uint8_t* codes,
            const faiss::Index& codec,
            size_t decode_block_size,
            const float* weights)
            : n_(n),
              codes_(codes),
              codec_(codec),
              code_size_(codec.sa_code_size()),
              block_(std::max<int64_t>(1, int64_t(decode_block_size))),
              weights_(weights) {}

    int64_t size() const override {
        return n_;
    }
    int64_t dim() const override {
        return codec_.d;
    }

    Rows read(int64_t begin, int64_t count) override {
        rows_.resize(size_t(count) * dim());
        for (int64_t i = 0; i < count; i += block_) {
            codec_.sa_decode(
                    std::min(block_, count - i),
                    codes_ + (begin + i) * code_size_,
                    rows_.data() + i * dim());
        }
        return {count, rows_.data(), weights_ ? weights_ + begin : nullptr};
    }

   private:
    int64_t n_;
    const uint8_t* codes_;
    const faiss::Index& codec_;
    size_t code_size_;
    int64_t block_;
    const float* weights_;
    std::vector<float> rows_;
};

/// Codes that are numbers of a RowType; else null.
RowView codes_as_rows(const faiss::Index& codec, const uint8_t* codes) {
    using Quantizer = faiss::ScalarQuantizer;
    const auto* scalar =
            dynamic_cast<const faiss::IndexScalarQuantizer*>(&codec);
    if (scalar && scalar->sq.qtype == Quantizer::QT_8bit_direct) {
        return {codes, RowType::uint8};
    }
    if (scalar && scalar->sq.qtype == Quantizer::QT_fp16 &&
        reinterpret_cast<uintptr_t>(codes) % 2 == 0) {
        return {codes, RowType::float16};
    }
    return {};
}

void print_iteration(const IterationStats& s) {
    printf("  Iteration %d (%.2f s, E-step %.2f s) log-likelihood=%g "
           "objective=%g imbalance=%.3f empty=%ld revived=%ld\n",
           s.iteration,
           s.seconds,
           s.seconds_e_step,
           s.log_likelihood,
           s.objective,
           s.imbalance,
           long(s.empty),
           long(s.revived));
    fflush(stdout);
}

} // namespace

FlashGMMClustering::FlashGMMClustering(int d, int k)
        : faiss::Clustering(d, k) {}

FlashGMMClustering::FlashGMMClustering(
        int d,
        int k,
        const faiss::ClusteringParameters& cp)
        : faiss::Clustering(d, k, cp) {}

FlashGMMClustering::FlashGMMClustering(
        int d,
        int k,
        const faiss::ClusteringParameters& cp,
        const FlashGMMOptions& gmm)
        : faiss::Clustering(d, k, cp), gmm(gmm) {}

void FlashGMMClustering::train(
        idx_t n,
        const float* x,
        faiss::Index& index,
        const float* weights) {
    train(n, RowView(x), index, weights);
}

void FlashGMMClustering::train(
        idx_t n,
        RowView x,
        faiss::Index& index,
        const float* weights) {
    with_faiss_errors([&] { train(*rows_in_memory(n, x, weights), index); });
}

void FlashGMMClustering::train_encoded(
        idx_t n,
        const uint8_t* x,
        const faiss::Index* codec,
        faiss::Index& index,
        const float* weights) {
    if (!codec) {
        train(n, reinterpret_cast<const float*>(x), index, weights);
        return;
    }
    FAISS_THROW_IF_NOT_FMT(
            codec->d == int(d),
            "codec of dimension %d for a clustering of dimension %zd",
            int(codec->d),
            d);
    const RowView view = codes_as_rows(*codec, x);
    if (view.data != nullptr) {
        train(n, view, index, weights);
        return;
    }
    EncodedRows rows(n, x, *codec, decode_block_size, weights);
    train(rows, index);
}

void FlashGMMClustering::train(RowSource& rows, faiss::Index& index) {
    const int64_t n = rows.size();
    FAISS_THROW_IF_NOT_FMT(k >= 1, "k = %zd must be at least 1", k);
    FAISS_THROW_IF_NOT_FMT(
            index.d == int(d),
            "index of dimension %d for a clustering of dimension %zd",
            int(index.d),
            d);
    FAISS_THROW_IF_NOT_FMT(
            rows.dim() == int64_t(d),
            "rows of dimension %ld for a clustering of dimension %zd",
            long(rows.dim()),
            d);
    FAISS_THROW_IF_NOT_FMT(
            n >= int64_t(k),
            "n = %ld training rows are too few for k = %zd centroids",
            long(n),
            k);
    FAISS_THROW_IF_NOT_FMT(
            centroids.size() % d == 0 && centroids.size() / d <= k,
            "%zd floats of initial centroids for k = %zd, d = %zd",
            centroids.size(),
            k,
            d);

    EMOptions options;
    options.niter = niter;
    options.nredo = nredo;
    options.tol = gmm.tol;
    options.seed = uint64_t(seed);
    options.variance = gmm.variance;
    options.weights = gmm.weights;
    options.init = gmm.init;
    options.init_iterations = gmm.init_iterations;
    options.variance_floor = gmm.variance_floor;
    options.chunk_rows = gmm.chunk_rows;
    options.max_rows_per_component = max_points_per_centroid;
    // FAISS gives inner product indexes a spherical clustering; without it
    // the centroids of largest norm would take all rows.
    if (spherical || index.metric_type == faiss::METRIC_INNER_PRODUCT) {
        options.constraint = MeanConstraint::unit;
    } else if (int_centroids) {
        options.constraint = MeanConstraint::integer;
    }
    options.progress = [&](const Progress& progress) {
        faiss::InterruptCallback::check();
        if (gmm.progress) {
            gmm.progress(progress);
        }
    };
    Mixture initial;
    initial.k = int64_t(centroids.size() / d);
    initial.d = int64_t(d);
    initial.means = centroids;
    if (frozen_centroids) {
        options.frozen_means = initial.k;
    }
    if (verbose) {
        options.on_iteration = print_iteration;
        printf("Fitting a mixture of %zd components to %ld rows in %zdD, "
               "%d redos, %d iterations\n",
               k,
               long(n),
               d,
               nredo,
               niter);
    }
    if (n < int64_t(k) * min_points_per_centroid) {
        fprintf(stderr,
                "WARNING mixture of %zd components on %ld rows: at least %ld "
                "are advised (min_points_per_centroid = %d; 0 silences "
                "this)\n",
                k,
                long(n),
                long(k) * min_points_per_centroid,
                min_points_per_centroid);
    }

    EMResult result;
    with_faiss_errors([&] {
        const std::unique_ptr<Backend> backend = make_backend();
        EMSolver solver(*backend, options);
        result = solver.fit(
                rows, int64_t(k), initial.k > 0 ? &initial : nullptr);
    });
    index.reset();
    if (update_index || !index.is_trained) {
        index.train(idx_t(k), result.mixture.means.data());
        index.reset(); // some indexes store what they are trained on
    }
    index.add(idx_t(k), result.mixture.means.data());

    iteration_stats.clear();
    for (const IterationStats& s : result.iterations) {
        if (s.redo == result.best_redo) {
            iteration_stats.push_back(
                    {float(s.objective),
                     s.seconds,
                     s.seconds_e_step,
                     s.imbalance,
                     int(s.revived)});
        }
    }
    centroids = result.mixture.means;
    mixture = std::move(result.mixture);
    em_stats = std::move(result.iterations);
    converged = result.converged;
    distinct_centroids = result.distinct_means;
}

void FlashGMMClustering::assign(
        idx_t n,
        const float* x,
        int m,
        idx_t* components,
        float* log_scores,
        float* log_z) const {
    FAISS_THROW_IF_NOT_MSG(
            mixture.k > 0, "the mixture is not trained: call train() first");
    with_faiss_errors([&] {
        const std::unique_ptr<Backend> backend = make_backend();
        assign_to_mixture(
                *backend, mixture, n, x, m, components, log_scores, log_z);
    });
}

std::unique_ptr<RowSource> FlashGMMClustering::rows_in_memory(
        idx_t n,
        RowView x,
        const float* weights) const {
    return std::make_unique<MemoryRows>(n, int64_t(d), x, weights);
}

std::unique_ptr<Backend> FlashGMMClustering::make_backend() const {
    return std::make_unique<CpuBackend>();
}

void assign_to_mixture(
        Backend& backend,
        const Mixture& mixture,
        int64_t n,
        const float* x,
        int64_t m,
        int64_t* components,
        float* log_scores,
        float* log_z) {
    mixture.check();
    const Conditioning conditioning = Conditioning::from_mixture(mixture);
    backend.begin(conditioning.to_conditioned(mixture), conditioning);
    backend.assign(n, x, m, components, log_scores, log_z);
}

} // namespace faiss_flashgmm
