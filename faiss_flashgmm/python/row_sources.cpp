#include <faiss_flashgmm/python/row_sources.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <faiss_flashgmm/cpu/CpuBackend.h>
#include <faiss_flashgmm/io/open_vectors.h>
#include <faiss_flashgmm/python/arrays.h>
#include <faiss_flashgmm/utils/device_name.h>

#if FLASHGMM_PYTHON_CUDA
#include <faiss_flashgmm/gpu/CudaBackend.h>
#include <faiss_flashgmm/gpu/CudaRows.h>
#endif

namespace faiss_flashgmm {

namespace {

[[maybe_unused]] constexpr const char* kHowToBuild =
        "this package was built without CUDA: "
        "pip install . -C cmake.define.FLASHGMM_CUDA=ON";

/// Rows from an object with shape and read(begin, count), which returns an
/// array of float32.
class PythonRows : public RowSource {
   public:
    PythonRows(nb::object source, const float* weights)
            : source_(std::move(source)), weights_(weights) {
        const auto shape =
                nb::cast<std::pair<int64_t, int64_t>>(source_.attr("shape"));
        n_ = shape.first;
        d_ = shape.second;
    }
    ~PythonRows() override {
        const nb::gil_scoped_acquire gil;
        chunk_.reset();
        source_.reset();
    }

    int64_t size() const override {
        return n_;
    }
    int64_t dim() const override {
        return d_;
    }
    bool weighted() override {
        return weights_ != nullptr;
    }
    Rows read(int64_t begin, int64_t count) override {
        const nb::gil_scoped_acquire gil;
        chunk_ = source_.attr("read")(begin, count);
        const auto rows = nb::cast<Array<float, 2>>(chunk_);
        FLASHGMM_THROW_IF_NOT_FMT(
                int64_t(rows.shape(0)) == count && int64_t(rows.shape(1)) == d_,
                "read(%lld, %lld) returned an array of shape (%zu, %zu)",
                static_cast<long long>(begin),
                static_cast<long long>(count),
                rows.shape(0),
                rows.shape(1));
        return {count, rows.data(), weights_ ? weights_ + begin : nullptr};
    }

   private:
    nb::object source_;
    nb::object chunk_; ///< keeps the last rows alive
    const float* weights_;
    int64_t n_;
    int64_t d_;
};

/// Memory that a Python object keeps.
struct View {
    std::vector<int64_t> shape;
    RowView data;
    bool on_device = false;
};

std::optional<RowType> row_type_of(nb::dlpack::dtype type) {
    using Code = nb::dlpack::dtype_code;
    const auto is = [&](Code code, int bits) {
        return type.lanes == 1 && type.code == uint8_t(code) &&
                type.bits == bits;
    };
    if (is(Code::Float, 32)) {
        return RowType::float32;
    }
    if (is(Code::Float, 16)) {
        return RowType::float16;
    }
    if (is(Code::Bfloat, 16)) {
        return RowType::bfloat16;
    }
    if (is(Code::Int, 8)) {
        return RowType::int8;
    }
    if (is(Code::UInt, 8)) {
        return RowType::uint8;
    }
    return {};
}

/// Of arrays that speak no DLPack (Numba's).
View view_of_cuda_array(const nb::dict& interface) {
    const auto type = nb::cast<std::string>(interface["typestr"]);
    const std::pair<const char*, RowType> types[] = {
            {"<f4", RowType::float32},
            {"<f2", RowType::float16},
            {"|i1", RowType::int8},
            {"|u1", RowType::uint8},
    };
    View view;
    view.on_device = true;
    const auto pointer = nb::cast<uintptr_t>(interface["data"][nb::int_(0)]);
    view.data.data = reinterpret_cast<const void*>(pointer);
    bool known = false;
    for (const auto& [name, row_type] : types) {
        if (type == name) {
            view.data.type = row_type;
            known = true;
        }
    }
    if (!known) {
        throw nb::type_error(("device arrays of type " + type +
                              " are not read in place: convert them to float32")
                                     .c_str());
    }
    for (const nb::handle size : nb::cast<nb::tuple>(interface["shape"])) {
        view.shape.push_back(nb::cast<int64_t>(size));
    }
    if (interface.contains("strides") && !interface["strides"].is_none()) {
        int64_t stride = size_of(view.data.type);
        const auto strides = nb::cast<nb::tuple>(interface["strides"]);
        for (size_t i = view.shape.size(); i-- > 0;) {
            if (nb::cast<int64_t>(strides[i]) != stride) {
                throw nb::type_error("device arrays must be in C order");
            }
            stride *= view.shape[i];
        }
    }
    return view;
}

/// Nothing if the object is no array in C order of a RowType.
std::optional<View> view_of(const nb::object& x) {
    using Any = nb::ndarray<nb::ro, nb::c_contig>;
    Any array;
    if (!nb::try_cast<Any>(x, array, false)) { // no copies
        if (nb::hasattr(x, "__cuda_array_interface__") &&
            !nb::hasattr(x, "__dlpack__")) {
            return view_of_cuda_array(
                    nb::cast<nb::dict>(x.attr("__cuda_array_interface__")));
        }
        return {};
    }
    const std::optional<RowType> type = row_type_of(array.dtype());
    if (!type) {
        return {};
    }
    View view;
    for (size_t i = 0; i < array.ndim(); i++) {
        view.shape.push_back(int64_t(array.shape(i)));
    }
    view.data = {array.data(), *type};
    view.on_device = array.device_type() == nb::device::cuda::value ||
            array.device_type() == nb::device::cuda_managed::value;
    return view;
}

std::unique_ptr<RowSource> rows_on_device(
        [[maybe_unused]] const View& rows,
        [[maybe_unused]] const float* weights,
        [[maybe_unused]] const std::string& device) {
#if FLASHGMM_PYTHON_CUDA
    FLASHGMM_THROW_IF_NOT_FMT(
            !cuda_devices_of(device).empty(),
            "the rows are in memory of a GPU: pass device='cuda', or copy them "
            "to host memory for device '%s'",
            device.c_str());
    CudaRows::wait_for(rows.data.data);
    return std::make_unique<CudaRows>(
            rows.shape[0], rows.shape[1], rows.data, weights);
#else
    FLASHGMM_THROW_FMT("the rows are in memory of a GPU, but %s", kHowToBuild);
#endif
}

} // namespace

File::File(const std::string& path) : rows_(open_vectors(path)) {}

bool is_in_place(const nb::object& x) {
    return view_of(x).has_value();
}

std::shared_ptr<RowSource> make_source(
        const nb::object& x,
        const nb::object& weights,
        const std::string& device) {
    std::optional<View> w;
    if (!weights.is_none()) {
        w = view_of(weights);
        FLASHGMM_THROW_IF_NOT_FMT(
                w && w->shape.size() == 1 && w->data.type == RowType::float32,
                "weights must be one-dimensional and float32");
    }
    const auto* const values =
            w ? static_cast<const float*>(w->data.data) : nullptr;
    std::shared_ptr<RowSource> source;
    if (!w && nb::isinstance<File>(x)) {
        source = nb::cast<const File&>(x).rows();
    } else {
        const std::optional<View> rows =
                nb::hasattr(x, "read") ? std::nullopt : view_of(x);
        FLASHGMM_THROW_IF_NOT_FMT(
                !rows || rows->shape.size() == 2,
                "rows are an array of %zu dimensions",
                rows->shape.size());
        FLASHGMM_THROW_IF_NOT_FMT(
                !w || w->on_device == (rows && rows->on_device),
                "rows and weights are not in the same memory: one is on the "
                "host, the other on a device");
        if (!rows) {
            source = std::make_shared<PythonRows>(x, values);
        } else if (rows->on_device) {
            source = rows_on_device(*rows, values, device);
        } else {
            source = std::make_shared<MemoryRows>(
                    rows->shape[0], rows->shape[1], rows->data, values);
        }
    }
    FLASHGMM_THROW_IF_NOT_FMT(
            !w || w->shape[0] == source->size(),
            "%lld weights for %lld rows",
            static_cast<long long>(w->shape[0]),
            static_cast<long long>(source->size()));
    return source;
}

std::unique_ptr<Backend> make_backend(const std::string& device) {
    const std::vector<int> devices = cuda_devices_of(device);
    if (devices.empty()) {
        return std::make_unique<CpuBackend>();
    }
#if FLASHGMM_PYTHON_CUDA
    CudaOptions options;
    options.devices = devices;
    return std::make_unique<CudaBackend>(options);
#else
    FLASHGMM_THROW_FMT("device '%s': %s", device.c_str(), kHowToBuild);
#endif
}

std::string why_no_cuda() {
#if FLASHGMM_PYTHON_CUDA
    return CudaBackend::why_unavailable(0);
#else
    return kHowToBuild;
#endif
}

} // namespace faiss_flashgmm
