#include <faiss_flashgmm/cpu/row_kernels.h>

#include <limits>
#include <type_traits>

// Highway compiles this file once for each instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "faiss_flashgmm/cpu/row_kernels.cpp"
#include <hwy/foreach_target.h>

#include <hwy/highway.h>

#include <hwy/contrib/math/math-inl.h>

HWY_BEFORE_NAMESPACE();
namespace faiss_flashgmm {
namespace row_kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr float kLn2 = 0.693147180559945f;

float UpperBounds(
        size_t n,
        const float* HWY_RESTRICT slope,
        const float* HWY_RESTRICT intercept,
        float half_norm,
        float* HWY_RESTRICT u) {
    const hn::ScalableTag<float> tag;
    const size_t lanes = hn::Lanes(tag);
    const auto offset = hn::Set(tag, half_norm);
    auto largest = hn::Set(tag, -std::numeric_limits<float>::infinity());
    size_t i = 0;
    for (; i + lanes <= n; i += lanes) {
        const auto bound = hn::MulAdd(
                hn::LoadU(tag, slope + i),
                hn::Sub(hn::LoadU(tag, u + i), offset),
                hn::LoadU(tag, intercept + i));
        hn::StoreU(bound, tag, u + i);
        largest = hn::Max(largest, bound);
    }
    float result = hn::GetLane(hn::MaxOfLanes(tag, largest));
    for (; i < n; i++) {
        u[i] = slope[i] * (u[i] - half_norm) + intercept[i];
        result = u[i] > result ? u[i] : result;
    }
    return result;
}

float Largest(size_t n, const float* HWY_RESTRICT u) {
    const hn::ScalableTag<float> tag;
    const size_t lanes = hn::Lanes(tag);
    auto largest = hn::Set(tag, u[0]);
    size_t i = 0;
    for (; i + lanes <= n; i += lanes) {
        largest = hn::Max(largest, hn::LoadU(tag, u + i));
    }
    float result = hn::GetLane(hn::MaxOfLanes(tag, largest));
    for (; i < n; i++) {
        result = u[i] > result ? u[i] : result;
    }
    return result;
}

size_t IndexOf(size_t n, const float* HWY_RESTRICT u, float value) {
    const hn::ScalableTag<float> tag;
    const size_t lanes = hn::Lanes(tag);
    const auto wanted = hn::Set(tag, value);
    size_t i = 0;
    for (; i + lanes <= n; i += lanes) {
        const auto found = hn::Eq(hn::LoadU(tag, u + i), wanted);
        if (!hn::AllFalse(tag, found)) {
            return i + size_t(hn::FindFirstTrue(tag, found));
        }
    }
    while (i < n && u[i] != value) {
        i++;
    }
    return i;
}

/// 2^x or up to 6.2% more, for x <= 0; next to nothing for x < -126. The
/// mantissa is interpolated linearly, which never falls below a convex curve.
template <class Tag>
HWY_INLINE hn::Vec<Tag> Exp2Bound(Tag tag, hn::Vec<Tag> x) {
    const auto exponent =
            hn::Max(hn::Add(x, hn::Set(tag, 127.0f)), hn::Zero(tag));
    return hn::BitCast(
            tag,
            hn::ConvertTo(
                    hn::RebindToSigned<Tag>(),
                    hn::Mul(exponent, hn::Set(tag, 0x1p23f))));
}

size_t SelectAbove(
        size_t n,
        const float* HWY_RESTRICT u,
        float threshold,
        float best,
        float* HWY_RESTRICT missed,
        uint32_t* HWY_RESTRICT indices) {
    const hn::ScalableTag<float> tag;
    const size_t lanes = hn::Lanes(tag);
    const auto near = hn::Set(tag, threshold - kMissedBits);
    const auto cut = hn::Set(tag, threshold);
    const auto top = hn::Set(tag, best);
    auto sum = hn::Zero(tag);
    size_t count = 0;
    size_t i = 0;
    for (; i + lanes <= n; i += lanes) {
        const auto bound = hn::LoadU(tag, u + i);
        const auto is_near = hn::Gt(bound, near);
        if (HWY_LIKELY(hn::AllFalse(tag, is_near))) {
            continue;
        }
        const auto is_above = hn::Gt(bound, cut);
        const auto is_missed = hn::AndNot(
                hn::VecFromMask(tag, is_above), hn::VecFromMask(tag, is_near));
        const auto share = Exp2Bound(tag, hn::Sub(bound, top));
        sum = hn::Add(sum, hn::And(share, is_missed));
        if (!hn::AllFalse(tag, is_above)) {
            for (size_t j = i; j < i + lanes; j++) {
                indices[count] = uint32_t(j);
                count += u[j] > threshold;
            }
        }
    }
    float total = hn::GetLane(hn::SumOfLanes(tag, sum));
    for (; i < n; i++) {
        if (u[i] > threshold) {
            indices[count++] = uint32_t(i);
        } else if (u[i] > threshold - kMissedBits) {
            const hn::CappedTag<float, 1> one;
            total += hn::GetLane(Exp2Bound(one, hn::Set(one, u[i] - best)));
        }
    }
    *missed = total;
    return count;
}

float SquaredDistance(
        size_t d,
        const float* HWY_RESTRICT x,
        const float* HWY_RESTRICT y) {
    const hn::ScalableTag<float> tag;
    const size_t lanes = hn::Lanes(tag);
    auto s0 = hn::Zero(tag);
    auto s1 = s0;
    auto s2 = s0;
    auto s3 = s0;
    size_t j = 0;
    const auto delta = [&](size_t at) HWY_ATTR {
        return hn::Sub(hn::LoadU(tag, x + at), hn::LoadU(tag, y + at));
    };
    for (; j + 4 * lanes <= d; j += 4 * lanes) {
        const auto a = delta(j);
        const auto b = delta(j + lanes);
        const auto c = delta(j + 2 * lanes);
        const auto e = delta(j + 3 * lanes);
        s0 = hn::MulAdd(a, a, s0);
        s1 = hn::MulAdd(b, b, s1);
        s2 = hn::MulAdd(c, c, s2);
        s3 = hn::MulAdd(e, e, s3);
    }
    for (; j + lanes <= d; j += lanes) {
        const auto a = delta(j);
        s0 = hn::MulAdd(a, a, s0);
    }
    float sum = hn::GetLane(
            hn::SumOfLanes(tag, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
    const hn::CappedTag<float, 4> quad;
    for (; j + hn::Lanes(quad) <= d; j += hn::Lanes(quad)) {
        const auto a = hn::Sub(hn::LoadU(quad, x + j), hn::LoadU(quad, y + j));
        sum += hn::GetLane(hn::SumOfLanes(quad, hn::Mul(a, a)));
    }
    for (; j < d; j++) {
        sum += (x[j] - y[j]) * (x[j] - y[j]);
    }
    return sum;
}

void SquaredDistances(
        size_t d,
        const float* HWY_RESTRICT x,
        const float* HWY_RESTRICT means,
        size_t n,
        const uint32_t* HWY_RESTRICT indices,
        float* HWY_RESTRICT distances) {
    for (size_t i = 0; i < n; i++) {
        distances[i] = SquaredDistance(d, x, means + indices[i] * d);
    }
}

double Exp2Below(
        size_t n,
        const float* HWY_RESTRICT logits,
        float* HWY_RESTRICT r) {
    const hn::ScalableTag<float> tag;
    const size_t lanes = hn::Lanes(tag);
    const auto ln2 = hn::Set(tag, kLn2);
    size_t i = 0;
    for (; i + lanes <= n; i += lanes) {
        hn::StoreU(
                hn::Exp(tag, hn::Mul(ln2, hn::LoadU(tag, logits + i))),
                tag,
                r + i);
    }
    const hn::CappedTag<float, 1> one;
    for (; i < n; i++) {
        r[i] = hn::GetLane(hn::Exp(one, hn::Set(one, kLn2 * logits[i])));
    }
    double sum = 0;
    for (size_t j = 0; j < n; j++) {
        sum += r[j];
    }
    return sum;
}

/// One strip of kVectors * lanes columns, the sums held in registers.
template <int kVectors, class Tag>
void AddWeightedStrip(
        Tag tag,
        size_t d,
        const float* HWY_RESTRICT x,
        size_t n,
        const uint32_t* HWY_RESTRICT rows,
        const double* HWY_RESTRICT weights,
        double* HWY_RESTRICT sums) {
    const hn::Rebind<float, decltype(tag)> narrow;
    const size_t lanes = hn::Lanes(tag);
    auto load = [&](int v)
                        HWY_ATTR { return hn::LoadU(tag, sums + v * lanes); };
    auto s0 = load(0);
    auto s1 = kVectors > 1 ? load(1) : s0;
    auto s2 = kVectors > 2 ? load(2) : s0;
    auto s3 = kVectors > 2 ? load(3) : s0;
    auto s4 = kVectors > 4 ? load(4) : s0;
    auto s5 = kVectors > 4 ? load(5) : s0;
    auto s6 = kVectors > 4 ? load(6) : s0;
    auto s7 = kVectors > 4 ? load(7) : s0;
    for (size_t i = 0; i < n; i++) {
        const float* row = x + rows[i] * d;
        const auto w = hn::Set(tag, weights[i]);
        auto column = [&](int v) HWY_ATTR {
            return hn::PromoteTo(tag, hn::LoadU(narrow, row + v * lanes));
        };
        s0 = hn::MulAdd(w, column(0), s0);
        if (kVectors > 2) {
            s1 = hn::MulAdd(w, column(1), s1);
            s2 = hn::MulAdd(w, column(2), s2);
            s3 = hn::MulAdd(w, column(3), s3);
        }
        if (kVectors > 4) {
            s4 = hn::MulAdd(w, column(4), s4);
            s5 = hn::MulAdd(w, column(5), s5);
            s6 = hn::MulAdd(w, column(6), s6);
            s7 = hn::MulAdd(w, column(7), s7);
        }
    }
    hn::StoreU(s0, tag, sums);
    if (kVectors > 2) {
        hn::StoreU(s1, tag, sums + lanes);
        hn::StoreU(s2, tag, sums + 2 * lanes);
        hn::StoreU(s3, tag, sums + 3 * lanes);
    }
    if (kVectors > 4) {
        hn::StoreU(s4, tag, sums + 4 * lanes);
        hn::StoreU(s5, tag, sums + 5 * lanes);
        hn::StoreU(s6, tag, sums + 6 * lanes);
        hn::StoreU(s7, tag, sums + 7 * lanes);
    }
}

void AddWeightedRows(
        size_t d,
        const float* HWY_RESTRICT x,
        size_t n,
        const uint32_t* HWY_RESTRICT rows,
        const double* HWY_RESTRICT weights,
        double* HWY_RESTRICT sums) {
    size_t j = 0;
    const auto strips = [&](auto vectors, auto tag) HWY_ATTR {
        constexpr int kVectors = decltype(vectors)::value;
        const size_t width = kVectors * hn::Lanes(tag);
        for (; j + width <= d; j += width) {
            AddWeightedStrip<kVectors>(
                    tag, d, x + j, n, rows, weights, sums + j);
        }
    };
    const hn::ScalableTag<double> full;
    strips(std::integral_constant<int, 8>(), full);
    strips(std::integral_constant<int, 4>(), full);
    strips(std::integral_constant<int, 1>(), full);
    strips(std::integral_constant<int, 1>(), hn::CappedTag<double, 4>());
    strips(std::integral_constant<int, 1>(), hn::CappedTag<double, 1>());
}

double SquaredNorm(size_t d, const float* HWY_RESTRICT x) {
    const hn::ScalableTag<double> tag;
    const hn::Rebind<float, decltype(tag)> narrow;
    const size_t lanes = hn::Lanes(tag);
    auto total = hn::Zero(tag);
    size_t j = 0;
    for (; j + lanes <= d; j += lanes) {
        const auto v = hn::PromoteTo(tag, hn::LoadU(narrow, x + j));
        total = hn::MulAdd(v, v, total);
    }
    double sum = hn::GetLane(hn::SumOfLanes(tag, total));
    for (; j < d; j++) {
        sum += double(x[j]) * double(x[j]);
    }
    return sum;
}

void Condition(
        size_t d,
        const float* HWY_RESTRICT x,
        const float* HWY_RESTRICT shift,
        double inverse,
        float* HWY_RESTRICT out) {
    const hn::ScalableTag<double> tag;
    const hn::Rebind<float, decltype(tag)> narrow;
    const size_t lanes = hn::Lanes(tag);
    const auto factor = hn::Set(tag, inverse);
    size_t j = 0;
    for (; j + lanes <= d; j += lanes) {
        const auto delta =
                hn::Sub(hn::PromoteTo(tag, hn::LoadU(narrow, x + j)),
                        hn::PromoteTo(tag, hn::LoadU(narrow, shift + j)));
        hn::StoreU(
                hn::DemoteTo(narrow, hn::Mul(delta, factor)), narrow, out + j);
    }
    for (; j < d; j++) {
        out[j] = float((double(x[j]) - double(shift[j])) * inverse);
    }
}

size_t NextBelow(
        size_t n,
        const uint16_t* HWY_RESTRICT values,
        uint16_t offset,
        uint16_t flip,
        uint16_t threshold,
        size_t from,
        uint32_t* HWY_RESTRICT below) {
    const hn::CappedTag<uint16_t, kBelowBlock> tag;
    const size_t lanes = hn::Lanes(tag);
    const auto added = hn::Set(tag, offset);
    const auto flipped = hn::Set(tag, flip);
    const auto limit = hn::Set(tag, threshold);
    const auto is_below = [&](size_t i) HWY_ATTR {
        const auto value = hn::Add(hn::LoadU(tag, values + i), added);
        return hn::Lt(hn::Xor(value, flipped), limit);
    };
    for (size_t i = from; i < n; i += kBelowBlock) {
        uint32_t found = 0;
        for (size_t j = 0; j < kBelowBlock; j += lanes) {
            const auto mask = is_below(i + j);
            if (HWY_LIKELY(hn::AllFalse(tag, mask))) {
                continue;
            }
            uint8_t bits[8] = {}; // as many as StoreMaskBits may write
            hn::StoreMaskBits(tag, mask, bits);
            for (size_t b = 0; 8 * b < lanes; b++) {
                found |= uint32_t(bits[b]) << (j + 8 * b);
            }
        }
        if (found) {
            *below = found;
            return i;
        }
    }
    return n;
}

} // namespace HWY_NAMESPACE
} // namespace row_kernels
} // namespace faiss_flashgmm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace faiss_flashgmm {
namespace row_kernels {

HWY_EXPORT(UpperBounds);
HWY_EXPORT(Largest);
HWY_EXPORT(IndexOf);
HWY_EXPORT(SelectAbove);
HWY_EXPORT(SquaredDistances);
HWY_EXPORT(Exp2Below);
HWY_EXPORT(AddWeightedRows);
HWY_EXPORT(SquaredNorm);
HWY_EXPORT(Condition);
HWY_EXPORT(NextBelow);

float upper_bounds(
        size_t n,
        const float* slope,
        const float* intercept,
        float half_norm,
        float* u) {
    return HWY_DYNAMIC_DISPATCH(UpperBounds)(n, slope, intercept, half_norm, u);
}

float largest(size_t n, const float* u) {
    return HWY_DYNAMIC_DISPATCH(Largest)(n, u);
}

size_t index_of(size_t n, const float* u, float value) {
    return HWY_DYNAMIC_DISPATCH(IndexOf)(n, u, value);
}

size_t select_above(
        size_t n,
        const float* u,
        float threshold,
        float best,
        float* missed,
        uint32_t* indices) {
    return HWY_DYNAMIC_DISPATCH(SelectAbove)(
            n, u, threshold, best, missed, indices);
}

void squared_distances(
        size_t d,
        const float* x,
        const float* means,
        size_t n,
        const uint32_t* indices,
        float* distances) {
    HWY_DYNAMIC_DISPATCH(SquaredDistances)(d, x, means, n, indices, distances);
}

double exp2_below(size_t n, const float* logits, float* r) {
    return HWY_DYNAMIC_DISPATCH(Exp2Below)(n, logits, r);
}

void add_weighted_rows(
        size_t d,
        const float* x,
        size_t n,
        const uint32_t* rows,
        const double* weights,
        double* sums) {
    HWY_DYNAMIC_DISPATCH(AddWeightedRows)(d, x, n, rows, weights, sums);
}

double squared_norm(size_t d, const float* x) {
    return HWY_DYNAMIC_DISPATCH(SquaredNorm)(d, x);
}

void condition(
        size_t d,
        const float* x,
        const float* shift,
        double inverse,
        float* out) {
    HWY_DYNAMIC_DISPATCH(Condition)(d, x, shift, inverse, out);
}

size_t next_below(
        size_t n,
        const uint16_t* values,
        uint16_t offset,
        uint16_t flip,
        uint16_t threshold,
        size_t from,
        uint32_t* below) {
    return HWY_DYNAMIC_DISPATCH(NextBelow)(
            n, values, offset, flip, threshold, from, below);
}

} // namespace row_kernels
} // namespace faiss_flashgmm

#endif // HWY_ONCE
