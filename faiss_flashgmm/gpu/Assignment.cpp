#include <faiss_flashgmm/gpu/Assignment.h>

#include <algorithm>
#include <cmath>

namespace faiss_flashgmm::gpu {

void Assignment::assign(
        const ResidentRows& r,
        int64_t m,
        float user_offset,
        int64_t* components,
        float* log_scores,
        float* log_z) {
    m_ = m;
    user_offset_ = user_offset;
    launch_.reserve(r.rows.n);
    components_.reserve(r.rows.n * m, "the assigned components");
    log_scores_.reserve(r.rows.n * m, "the log-scores");
    log_z_.reserve(r.rows.n, "the log-densities");
    const bool sparse = mixture_.sparse() && m <= SparsePosterior::kMostTop &&
            mixture_.slack_bits() < DeviceMixture::kMostSlack;
    for (int64_t begin = 0; begin < r.rows.n;) {
        const int64_t count = std::min(launch_.rows(), r.rows.n - begin);
        const SourceRows rows = r.rows.slice(begin, count);
        if (sparse) {
            assign_sparse(rows, r.half_rows.slice(begin, count), begin);
        } else {
            assign_dense(rows, nullptr, count, begin);
        }
        begin += count;
    }
    const auto copy = [&](auto* to, const auto* from, int64_t size) {
        FLASHGMM_CUDA(cudaMemcpyAsync(
                to,
                from,
                size * sizeof(*to),
                cudaMemcpyDefault,
                context_.compute));
    };
    copy(components, components_.get(), r.rows.n * m);
    copy(log_scores, log_scores_.get(), r.rows.n * m);
    if (log_z != nullptr) {
        copy(log_z, log_z_.get(), r.rows.n);
    }
    context_.compute.synchronize();
}

void Assignment::assign_sparse(
        const SourceRows& rows,
        const HalfRows& half,
        int64_t first) {
    const cudaStream_t stream = context_.compute;
    launch_.clear(rows.n);
    SparsePosterior pass = launch_.sparse_posterior(
            half,
            float(context_.options.min_responsibility *
                  std::exp2(-mixture_.slack_bits())),
            false);
    pass.m = int(m_);
    pass.slack = float(1 + mixture_.slack_bits());
    pass.launch(stream);
    EmitPairs emit = launch_.emit_pairs(rows, pass);
    emit.ranges = launch_.row_ranges();
    emit.launch(stream);
    RefinePairs refine = launch_.refine_pairs(rows);
    refine.m = m_;
    refine.top_components = components_.get() + first * m_;
    refine.log_scores = log_scores_.get() + first * m_;
    refine.log_z = log_z_.get() + first;
    refine.offset = user_offset_;
    refine.launch(stream);
    launch_.copy_state();
    if (!emit.out.valid(launch_.state())) {
        const int64_t split = HalfRows::padded_rows((rows.n + 1) / 2);
        assign_sparse(rows.slice(0, split), half.slice(0, split), first);
        assign_sparse(
                rows.slice(split, rows.n - split),
                half.slice(split, rows.n - split),
                first + split);
        return;
    }
    if (const int64_t dense = launch_.state().dense_rows; dense > 0) {
        assign_dense(rows, launch_.dense_list(), dense, first);
    }
}

void Assignment::assign_dense(
        const SourceRows& rows,
        const uint32_t* list,
        int64_t count,
        int64_t first) {
    const auto assign = [&](const DensePosterior& posterior) {
        DenseTop top;
        top.posterior = posterior;
        top.m = m_;
        const int64_t at = first + (list ? 0 : posterior.first);
        top.components = components_.get() + at * m_;
        top.log_scores = log_scores_.get() + at * m_;
        top.log_z = log_z_.get() + at;
        top.offset = user_offset_;
        top.launch(context_.compute);
    };
    launch_.for_dense_batches(rows, list, count, assign);
}

} // namespace faiss_flashgmm::gpu
