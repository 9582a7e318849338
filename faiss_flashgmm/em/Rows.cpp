#include <faiss_flashgmm/em/Rows.h>

#include <faiss_flashgmm/utils/Error.h>
#include <faiss_flashgmm/utils/half.h>

namespace faiss_flashgmm {

namespace {

template <class T, class Convert>
void convert(const void* data, int64_t size, float* out, Convert&& to_float) {
    const T* x = static_cast<const T*>(data);
    for (int64_t i = 0; i < size; i++) {
        out[i] = to_float(x[i]);
    }
}

} // namespace

const char* name_of(RowType type) {
    switch (type) {
        case RowType::float32:
            return "float32";
        case RowType::float16:
            return "float16";
        case RowType::bfloat16:
            return "bfloat16";
        case RowType::int8:
            return "int8";
        case RowType::uint8:
            return "uint8";
    }
    return "unknown";
}

const float* RowView::floats() const {
    FLASHGMM_THROW_IF_NOT_FMT(
            type == RowType::float32,
            "rows of type %s where float32 is needed",
            name_of(type));
    return static_cast<const float*>(data);
}

void to_floats(RowView x, int64_t size, float* out) {
    switch (x.type) {
        case RowType::float32:
            std::copy_n(x.floats(), size, out);
            return;
        case RowType::float16:
            convert<uint16_t>(x.data, size, out, half_to_float);
            return;
        case RowType::bfloat16:
            convert<uint16_t>(x.data, size, out, bfloat16_to_float);
            return;
        case RowType::int8:
            convert<int8_t>(
                    x.data, size, out, [](int8_t v) { return float(v); });
            return;
        case RowType::uint8:
            convert<uint8_t>(
                    x.data, size, out, [](uint8_t v) { return float(v); });
            return;
    }
    FLASHGMM_THROW_FMT("row type %d does not exist", int(x.type));
}

} // namespace faiss_flashgmm
