// The Python module faiss_flashgmm._core. The package around it
// (faiss_flashgmm/*.py) checks and converts arguments.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <faiss_flashgmm/em/EMSolver.h>
#include <faiss_flashgmm/em/RowMoments.h>
#include <faiss_flashgmm/python/arrays.h>
#include <faiss_flashgmm/python/index_bindings.h>
#include <faiss_flashgmm/python/row_sources.h>

namespace nb = nanobind;
using namespace nb::literals;
using namespace faiss_flashgmm;

namespace {

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

nb::dict fit(
        nb::object x,
        int64_t k,
        nb::object sample_weight,
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
    const std::shared_ptr<RowSource> rows =
            make_source(x, sample_weight, device);
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
        nb::object x,
        int64_t m,
        const std::string& device) {
    const Mixture mixture = make_mixture(means, variances, weights);
    mixture.check();
    const std::unique_ptr<Backend> backend = make_backend(device);
    const std::shared_ptr<RowSource> rows = make_source(x, nb::none(), device);
    FLASHGMM_THROW_IF_NOT_FMT(
            rows->dim() == mixture.d,
            "rows of dimension %lld for a mixture of dimension %lld",
            static_cast<long long>(rows->dim()),
            static_cast<long long>(mixture.d));
    FLASHGMM_THROW_IF_NOT_FMT(
            m >= 1 && m <= mixture.k,
            "m = %lld is not between 1 and k = %lld",
            static_cast<long long>(m),
            static_cast<long long>(mixture.k));
    const int64_t n = rows->size();
    std::vector<int64_t> components(n * m);
    std::vector<float> log_scores(n * m);
    std::vector<float> log_z(n);
    {
        const nb::gil_scoped_release released;
        const Conditioning conditioning = Conditioning::from_mixture(mixture);
        backend->begin(conditioning.to_conditioned(mixture), conditioning);
        // Only for its check of the rows.
        RowMoments moments(std::vector<double>(mixture.d, 0.0));
        const int64_t chunk = backend->preferred_chunk(mixture.k, mixture.d);
        for (int64_t begin = 0; begin < n; begin += chunk) {
            const Rows part = rows->read(begin, std::min(chunk, n - begin));
            const std::string error =
                    backend->add_moments(begin, part, moments);
            FLASHGMM_THROW_IF_NOT_FMT(error.empty(), "%s", error.c_str());
            backend->assign(
                    part.n,
                    part.x,
                    m,
                    components.data() + begin * m,
                    log_scores.data() + begin * m,
                    log_z.data() + begin);
            const nb::gil_scoped_acquire gil;
            check_signals();
        }
    }
    const auto size = size_t(n);
    return nb::make_tuple(
            to_numpy(std::move(components), {size, size_t(m)}),
            to_numpy(std::move(log_scores), {size, size_t(m)}),
            to_numpy(std::move(log_z), {size}));
}

/// Rows [begin, begin + count) as float32, wherever they are.
Output<float> read_rows(RowSource& rows, int64_t begin, int64_t count) {
    FLASHGMM_THROW_IF_NOT_FMT(
            begin >= 0 && count >= 0 && begin <= rows.size() - count,
            "rows [%lld, %lld + %lld) of %lld",
            static_cast<long long>(begin),
            static_cast<long long>(begin),
            static_cast<long long>(count),
            static_cast<long long>(rows.size()));
    std::vector<float> values(count * rows.dim());
    {
        const nb::gil_scoped_release released;
        std::vector<int64_t> indices;
        for (int64_t at = 0; at < count; at += int64_t(indices.size())) {
            indices.resize(std::min<int64_t>(count - at, 1 << 16));
            std::iota(indices.begin(), indices.end(), begin + at);
            rows.gather(indices, values.data() + at * rows.dim(), nullptr);
        }
    }
    return to_numpy(std::move(values), {size_t(count), size_t(rows.dim())});
}

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
    m.attr("version") = FLASHGMM_VERSION;
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
    m.def("is_in_place", &is_in_place, "x"_a);
    m.def(
            "to_float32",
            [](const nb::object& x, const std::string& device) {
                const auto rows = make_source(x, nb::none(), device);
                return read_rows(*rows, 0, rows->size());
            },
            "x"_a,
            "device"_a = "cpu");
    nb::class_<File>(m, "File")
            .def(nb::init<const std::string&>(), "path"_a)
            .def_prop_ro(
                    "shape",
                    [](const File& file) {
                        return std::pair(
                                file.rows()->size(), file.rows()->dim());
                    })
            .def(
                    "read",
                    [](const File& file, int64_t begin, int64_t count) {
                        return read_rows(*file.rows(), begin, count);
                    },
                    "begin"_a,
                    "count"_a);
    bind_index(m);
}
