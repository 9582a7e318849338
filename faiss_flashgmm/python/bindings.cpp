// The Python module faiss_flashgmm._core: the solver and nothing of FAISS. The
// package around it (faiss_flashgmm/*.py) checks and converts arguments.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <faiss_flashgmm/cpu/CpuBackend.h>
#include <faiss_flashgmm/em/EMSolver.h>
#include <faiss_flashgmm/io/open_vectors.h>
#include <faiss_flashgmm/utils/Error.h>
#include <faiss_flashgmm/utils/device_name.h>

#if FLASHGMM_PYTHON_CUDA
#include <faiss_flashgmm/gpu/CudaBackend.h>
#endif

namespace nb = nanobind;
using namespace nb::literals;
using namespace faiss_flashgmm;

namespace {

template <class T, int Dimensions>
using Array = nb::
        ndarray<const T, nb::ndim<Dimensions>, nb::c_contig, nb::device::cpu>;

template <class T>
using Output = nb::ndarray<nb::numpy, T>;

/// An array that owns the values.
template <class T>
Output<T> to_numpy(std::vector<T>&& values, std::vector<size_t> shape) {
    auto* const owned = new std::vector<T>(std::move(values));
    const nb::capsule owner(owned, [](void* memory) noexcept {
        delete static_cast<std::vector<T>*>(memory);
    });
    return Output<T>(owned->data(), shape.size(), shape.data(), owner);
}

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

std::unique_ptr<RowSource> make_source(
        const nb::object& x,
        const std::optional<Array<float, 1>>& weights) {
    const float* const w = weights ? weights->data() : nullptr;
    std::unique_ptr<RowSource> source;
    if (nb::isinstance<nb::str>(x)) {
        source = open_vectors(nb::cast<std::string>(x));
        FLASHGMM_THROW_IF_NOT_FMT(!w, "no weights for rows of a file");
    } else if (nb::isinstance<Array<float, 2>>(x)) {
        const auto rows = nb::cast<Array<float, 2>>(x);
        source = std::make_unique<MemoryRows>(
                rows.shape(0), rows.shape(1), rows.data(), w);
    } else {
        source = std::make_unique<PythonRows>(x, w);
    }
    FLASHGMM_THROW_IF_NOT_FMT(
            !weights || int64_t(weights->shape(0)) == source->size(),
            "%zu weights for %lld rows",
            weights->shape(0),
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
    FLASHGMM_THROW_FMT(
            "device '%s': this build has none but 'cpu'", device.c_str());
#endif
}

std::string why_no_cuda() {
#if FLASHGMM_PYTHON_CUDA
    return CudaBackend::why_unavailable(0);
#else
    return "built without CUDA";
#endif
}

Mixture make_mixture(
        const Array<float, 2>& means,
        const std::optional<Array<double, 1>>& variances,
        const std::optional<Array<double, 1>>& weights) {
    Mixture mixture;
    mixture.k = int64_t(means.shape(0));
    mixture.d = int64_t(means.shape(1));
    mixture.means.assign(means.data(), means.data() + means.size());
    const auto copy = [&](const std::optional<Array<double, 1>>& from,
                          std::vector<double>& to,
                          const char* what) {
        if (from) {
            FLASHGMM_THROW_IF_NOT_FMT(
                    int64_t(from->shape(0)) == mixture.k,
                    "%zu %s for %lld means",
                    from->shape(0),
                    what,
                    static_cast<long long>(mixture.k));
            to.assign(from->data(), from->data() + from->size());
        }
    };
    copy(variances, mixture.variances, "variances");
    copy(weights, mixture.weights, "weights");
    return mixture;
}

nb::dict to_dict(const IterationStats& s) {
    nb::dict out;
    out["redo"] = s.redo;
    out["iteration"] = s.iteration;
    out["log_likelihood"] = s.log_likelihood;
    out["objective"] = s.objective;
    out["seconds"] = s.seconds;
    out["seconds_e_step"] = s.seconds_e_step;
    out["imbalance"] = s.imbalance;
    out["empty"] = s.empty;
    out["revived"] = s.revived;
    out["at_floor"] = s.at_floor;
    out["moved_mass"] = s.moved_mass;
    out["dropped_mass"] = s.dropped_mass;
    out["pairs_per_row"] = s.pairs_per_row;
    return out;
}

const char* name_of(Progress::Stage stage) {
    switch (stage) {
        case Progress::Stage::check_rows:
            return "check_rows";
        case Progress::Stage::initialize:
            return "initialize";
        case Progress::Stage::em:
            return "em";
    }
    return "";
}

nb::dict to_dict(const Progress& p) {
    nb::dict out;
    out["stage"] = name_of(p.stage);
    out["redo"] = p.redo;
    out["nredo"] = p.nredo;
    out["iteration"] = p.iteration;
    out["niter"] = p.niter;
    out["rows_done"] = p.rows_done;
    out["rows_total"] = p.rows_total;
    out["log_likelihood"] = p.log_likelihood;
    out["elapsed_seconds"] = p.elapsed_seconds;
    out["eta_seconds"] = p.eta_seconds;
    return out;
}

/// Ctrl-C ends a computation at the next chunk of rows.
void check_signals() {
    if (PyErr_CheckSignals() != 0) {
        throw nb::python_error();
    }
}

template <class T>
T choose(
        const std::string& name,
        const char* what,
        std::initializer_list<std::pair<const char*, T>> choices) {
    std::string known;
    for (const auto& [choice, value] : choices) {
        if (name == choice) {
            return value;
        }
        known += std::string(known.empty() ? "'" : ", '") + choice + "'";
    }
    FLASHGMM_THROW_FMT(
            "%s '%s' is none of %s", what, name.c_str(), known.c_str());
}

nb::dict fit(
        nb::object x,
        int64_t k,
        std::optional<Array<float, 1>> sample_weight,
        std::optional<Array<float, 2>> means,
        std::optional<Array<double, 1>> variances,
        std::optional<Array<double, 1>> weights,
        int niter,
        int nredo,
        double tol,
        uint64_t seed,
        const std::string& variance_model,
        const std::string& weight_model,
        const std::string& constraint,
        const std::string& init,
        double variance_floor,
        int64_t max_rows_per_component,
        const std::string& device,
        nb::object progress,
        nb::object on_iteration) {
    EMOptions options;
    options.niter = niter;
    options.nredo = nredo;
    options.tol = tol;
    options.seed = seed;
    options.variance = choose<VarianceModel>(
            variance_model,
            "variance_model",
            {{"per_component", VarianceModel::per_component},
             {"tied", VarianceModel::tied}});
    options.weights = choose<WeightModel>(
            weight_model,
            "weight_model",
            {{"free", WeightModel::free}, {"uniform", WeightModel::uniform}});
    options.constraint = choose<MeanConstraint>(
            constraint,
            "constraint",
            {{"none", MeanConstraint::none},
             {"unit", MeanConstraint::unit},
             {"integer", MeanConstraint::integer}});
    options.init = choose<Initialization>(
            init,
            "init_params",
            {{"lloyd", Initialization::lloyd},
             {"random_rows", Initialization::random_rows},
             {"kmeans_pp", Initialization::kmeans_pp}});
    options.variance_floor = variance_floor;
    options.max_rows_per_component = max_rows_per_component;
    options.progress = [&](const Progress& p) {
        const nb::gil_scoped_acquire gil;
        check_signals();
        if (!progress.is_none()) {
            progress(to_dict(p));
        }
    };
    if (!on_iteration.is_none()) {
        options.on_iteration = [&](const IterationStats& s) {
            const nb::gil_scoped_acquire gil;
            on_iteration(to_dict(s));
        };
    }
    std::optional<Mixture> initial;
    if (means) {
        initial = make_mixture(*means, variances, weights);
    }
    const std::unique_ptr<Backend> backend = make_backend(device);
    const std::unique_ptr<RowSource> rows = make_source(x, sample_weight);
    EMResult result;
    {
        const nb::gil_scoped_release released;
        EMSolver solver(*backend, options);
        result = solver.fit(*rows, k, initial ? &*initial : nullptr);
    }
    Mixture& mixture = result.mixture;
    nb::list iterations;
    for (const IterationStats& s : result.iterations) {
        iterations.append(to_dict(s));
    }
    const auto size = size_t(mixture.k);
    nb::dict out;
    out["means"] =
            to_numpy(std::move(mixture.means), {size, size_t(mixture.d)});
    out["variances"] = to_numpy(std::move(mixture.variances), {size});
    out["weights"] = to_numpy(std::move(mixture.weights), {size});
    out["iterations"] = iterations;
    out["best_redo"] = result.best_redo;
    out["converged"] = result.converged;
    out["distinct_means"] = result.distinct_means;
    out["rows_used"] = result.rows_used;
    return out;
}

nb::tuple assign(
        const Array<float, 2>& means,
        const Array<double, 1>& variances,
        const Array<double, 1>& weights,
        const Array<float, 2>& x,
        int64_t m,
        const std::string& device) {
    const Mixture mixture = make_mixture(means, variances, weights);
    mixture.check();
    FLASHGMM_THROW_IF_NOT_FMT(
            int64_t(x.shape(1)) == mixture.d,
            "rows of dimension %zu for a mixture of dimension %lld",
            x.shape(1),
            static_cast<long long>(mixture.d));
    FLASHGMM_THROW_IF_NOT_FMT(
            m >= 1 && m <= mixture.k,
            "m = %lld is not between 1 and k = %lld",
            static_cast<long long>(m),
            static_cast<long long>(mixture.k));
    const size_t n = x.shape(0);
    std::vector<int64_t> components(n * m);
    std::vector<float> log_scores(n * m);
    std::vector<float> log_z(n);
    const std::unique_ptr<Backend> backend = make_backend(device);
    {
        const nb::gil_scoped_release released;
        const Conditioning conditioning = Conditioning::from_mixture(mixture);
        backend->begin(conditioning.to_conditioned(mixture), conditioning);
        const auto chunk =
                size_t(backend->preferred_chunk(mixture.k, mixture.d));
        for (size_t begin = 0; begin < n; begin += chunk) {
            backend->assign(
                    int64_t(std::min(chunk, n - begin)),
                    x.data() + begin * mixture.d,
                    m,
                    components.data() + begin * m,
                    log_scores.data() + begin * m,
                    log_z.data() + begin);
            const nb::gil_scoped_acquire gil;
            check_signals();
        }
    }
    return nb::make_tuple(
            to_numpy(std::move(components), {n, size_t(m)}),
            to_numpy(std::move(log_scores), {n, size_t(m)}),
            to_numpy(std::move(log_z), {n}));
}

/// Rows of a file, as float32 arrays.
class File {
   public:
    explicit File(const std::string& path) : source_(open_vectors(path)) {}

    std::pair<int64_t, int64_t> shape() const {
        return {source_->size(), source_->dim()};
    }
    Output<float> read(int64_t begin, int64_t count) {
        std::vector<float> values;
        {
            const nb::gil_scoped_release released;
            const Rows rows = source_->read(begin, count);
            values.resize(rows.n * source_->dim());
            to_floats(rows.x, int64_t(values.size()), values.data());
        }
        return to_numpy(
                std::move(values), {size_t(count), size_t(source_->dim())});
    }

   private:
    std::unique_ptr<RowSource> source_;
};

} // namespace

NB_MODULE(_core, m) {
    nb::register_exception_translator([](const std::exception_ptr& e, void*) {
        try {
            std::rethrow_exception(e);
        } catch (const OutOfMemory& error) {
            PyErr_SetString(PyExc_MemoryError, error.what());
        } catch (const Error& error) {
            PyErr_SetString(PyExc_ValueError, error.what());
        }
    });
    m.attr("__version__") = FLASHGMM_VERSION;
    m.def("why_no_cuda", &why_no_cuda);
    m.def("fit",
          &fit,
          "x"_a,
          "k"_a,
          nb::kw_only(),
          "sample_weight"_a = nb::none(),
          "means"_a = nb::none(),
          "variances"_a = nb::none(),
          "weights"_a = nb::none(),
          "niter"_a,
          "nredo"_a,
          "tol"_a,
          "seed"_a,
          "variance_model"_a,
          "weight_model"_a,
          "constraint"_a,
          "init"_a,
          "variance_floor"_a,
          "max_rows_per_component"_a,
          "device"_a,
          "progress"_a = nb::none(),
          "on_iteration"_a = nb::none());
    m.def("assign",
          &assign,
          "means"_a,
          "variances"_a,
          "weights"_a,
          "x"_a,
          "m"_a,
          "device"_a);
    nb::class_<File>(m, "File")
            .def(nb::init<const std::string&>(), "path"_a)
            .def_prop_ro("shape", &File::shape)
            .def("read", &File::read, "begin"_a, "count"_a);
}
