#include <faiss_flashgmm/python/index_bindings.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <faiss/IndexFlat.h>
#include <faiss/IndexIVF.h>
#include <faiss/impl/AuxIndexStructures.h>
#include <faiss/impl/FaissException.h>
#include <faiss/impl/io.h>
#include <faiss/index_io.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <faiss_flashgmm/MultiAssign.h>
#include <faiss_flashgmm/factory_options.h>
#include <faiss_flashgmm/index_factory.h>
#include <faiss_flashgmm/index_io.h>
#include <faiss_flashgmm/index_tree.h>
#include <faiss_flashgmm/ivf_checks.h>
#include <faiss_flashgmm/make_multi_assign.h>
#include <faiss_flashgmm/plain_message.h>
#include <faiss_flashgmm/python/arrays.h>
#include <faiss_flashgmm/stock_index.h>
#include <faiss_flashgmm/unique_results.h>

using namespace nanobind::literals;

namespace faiss_flashgmm {

namespace {

using Options = std::vector<std::string>;
using Vectors = Array<float, 2>;

/// FAISS asks from time to time whether to go on.
struct SignalCheck : faiss::InterruptCallback {
    bool want_interrupt() override {
        const nb::gil_scoped_acquire gil;
        return PyErr_CheckSignals() != 0;
    }
};

/// Runs work without the GIL; an interrupt raises what its handler raised.
template <class Work>
auto without_gil(const Work& work) {
    try {
        const nb::gil_scoped_release released;
        return work();
    } catch (const faiss::FaissException&) {
        if (PyErr_Occurred()) {
            throw nb::python_error();
        }
        throw;
    }
}

faiss::VectorIOReader reader_of(const nb::bytes& bytes) {
    faiss::VectorIOReader reader;
    const auto* const data = static_cast<const uint8_t*>(bytes.data());
    reader.data.assign(data, data + bytes.size());
    return reader;
}

MultiAssign make_assigner(const Options& options) {
    MultiAssign assigner;
    set_options(assigner, options);
    assigner.check();
    return assigner;
}

Mixture make_mixture(
        const Vectors& means,
        const std::vector<double>& variances,
        const std::vector<double>& weights) {
    Mixture mixture;
    mixture.k = int64_t(means.shape(0));
    mixture.d = int64_t(means.shape(1));
    mixture.means.assign(means.data(), means.data() + means.size());
    mixture.variances = variances;
    mixture.weights = weights;
    mixture.check();
    return mixture;
}

void check_dimension(const char* what, const Vectors& x, int64_t d) {
    FLASHGMM_THROW_IF_NOT_FMT(
            int64_t(x.shape(1)) == d,
            "%s has %zu columns, the index is of dimension %lld",
            what,
            x.shape(1),
            static_cast<long long>(d));
}

/// Lets a policy learn from rows, if it has to.
///
/// @param queries   for `demand`; null: the rows stand for them
void learn(
        MultiAssign& assigner,
        const faiss::Index& quantizer,
        const Mixture& mixture,
        const Vectors& rows,
        const std::optional<Vectors>& queries) {
    const auto n = idx_t(rows.shape(0));
    const idx_t n_queries = queries ? idx_t(queries->shape(0)) : 0;
    const float* const q = queries ? queries->data() : nullptr;
    check_finite(n, size_t(quantizer.d), rows.data());
    check_finite(n_queries, size_t(quantizer.d), q);
    assigner.learn(quantizer, mixture, n, rows.data(), n_queries, q);
}

/// An index of this package's own FAISS.
class Index {
   public:
    explicit Index(std::unique_ptr<faiss::Index> index)
            : index_(std::move(index)) {}

    static Index from_description(
            int d,
            const std::string& description,
            bool inner_product) {
        return Index(index_factory(
                d,
                description.c_str(),
                inner_product ? faiss::METRIC_INNER_PRODUCT
                              : faiss::METRIC_L2));
    }

    static Index read(const std::string& path) {
        return Index(without_gil(
                [&] { return faiss_flashgmm::read_index(path.c_str()); }));
    }

    static Index from_bytes(const nb::bytes& bytes) {
        faiss::VectorIOReader reader = reader_of(bytes);
        return Index(without_gil(
                [&] { return faiss_flashgmm::read_index(&reader); }));
    }

    /// @param bytes        of faiss::write_index
    /// @param learn_from   rows as they reach the lists, for later adds; null:
    ///                     nothing is learned
    static Index from_stock_bytes(
            const nb::bytes& bytes,
            const Options& options,
            const std::optional<Vectors>& means,
            const std::vector<double>& variances,
            const std::vector<double>& weights,
            const std::optional<Vectors>& learn_from,
            const std::optional<Vectors>& queries) {
        const MultiAssign assigner = make_assigner(options);
        faiss::VectorIOReader reader = reader_of(bytes);
        std::unique_ptr<faiss::Index> index(
                without_gil([&] { return faiss::read_index(&reader); }));
        IVFMultiAssign& ours = *make_multi_assign(index, assigner);
        if (means) {
            ours.set_mixture(make_mixture(*means, variances, weights));
        }
        if (learn_from) {
            const faiss::Index& quantizer =
                    *extract_index_ivf(index.get())->quantizer;
            check_dimension("learn_from", *learn_from, quantizer.d);
            if (queries) {
                check_dimension("queries", *queries, quantizer.d);
            }
            without_gil([&] {
                learn(ours.assigner,
                      quantizer,
                      ours.mixture(),
                      *learn_from,
                      queries);
            });
        }
        return Index(std::move(index));
    }

    void write(const std::string& path) const {
        without_gil([&] {
            faiss_flashgmm::write_index(index_.get(), path.c_str());
        });
    }

    nb::bytes to_bytes() const {
        faiss::VectorIOWriter writer;
        without_gil(
                [&] { faiss_flashgmm::write_index(index_.get(), &writer); });
        return nb::bytes(writer.data.data(), writer.data.size());
    }

    /// For faiss.deserialize_index.
    Output<uint8_t> to_stock_bytes(const std::string& copies) const {
        const StockCopies which = choose<StockCopies>(
                copies,
                "copies",
                {{"single", StockCopies::single}, {"all", StockCopies::all}});
        faiss::VectorIOWriter writer;
        without_gil([&] {
            const auto stock = to_stock(*index_, which);
            faiss::write_index(stock.get(), &writer);
        });
        const size_t size = writer.data.size();
        return to_numpy(std::move(writer.data), {size});
    }

    void train(const Vectors& x, const std::optional<Vectors>& queries) {
        check_dimension("x", x, index_->d);
        IVFMultiAssign* const ours = find_multi_assign(*index_);
        if (queries) {
            FLASHGMM_THROW_IF_NOT_FMT(
                    ours, "queries are for multi-assign indexes");
            check_dimension("queries", *queries, index_->d);
            ours->sample_queries.assign(
                    queries->data(), queries->data() + queries->size());
        }
        if (ours) {
            ours->gmm.progress = [](const Progress&) {
                const nb::gil_scoped_acquire gil;
                check_signals();
            };
        }
        const auto finish = [&] {
            if (ours) {
                ours->gmm.progress = nullptr;
                ours->sample_queries = {};
            }
        };
        try {
            without_gil([&] { index_->train(idx_t(x.shape(0)), x.data()); });
        } catch (...) {
            finish();
            throw;
        }
        finish();
    }

    void add(const Vectors& x, const std::optional<Array<int64_t, 1>>& ids) {
        check_dimension("x", x, index_->d);
        FLASHGMM_THROW_IF_NOT_FMT(
                !ids || ids->shape(0) == x.shape(0),
                "%zu ids for %zu vectors",
                ids->shape(0),
                x.shape(0));
        without_gil([&] {
            const auto n = idx_t(x.shape(0));
            if (ids) {
                index_->add_with_ids(n, x.data(), ids->data());
            } else {
                index_->add(n, x.data());
            }
        });
    }

    /// @return     vectors removed
    size_t remove_ids(const Array<int64_t, 1>& ids) {
        const faiss::IDSelectorBatch selector(ids.shape(0), ids.data());
        return without_gil([&] { return index_->remove_ids(selector); });
    }

    void reset() {
        index_->reset();
    }

    nb::tuple search(const Vectors& q, int64_t k) const {
        check_dimension("q", q, index_->d);
        FLASHGMM_THROW_IF_NOT_FMT(
                k >= 1,
                "k = %lld must be at least 1",
                static_cast<long long>(k));
        const size_t n = q.shape(0);
        std::vector<float> distances(n * k);
        std::vector<int64_t> ids(n * k);
        const size_t chunk = queries_at_once();
        for (size_t begin = 0; begin < n; begin += chunk) {
            without_gil([&] {
                index_->search(
                        idx_t(std::min(chunk, n - begin)),
                        q.data() + begin * index_->d,
                        k,
                        distances.data() + begin * k,
                        ids.data() + begin * k);
            });
            check_signals();
        }
        return nb::make_tuple(
                to_numpy(std::move(distances), {n, size_t(k)}),
                to_numpy(std::move(ids), {n, size_t(k)}));
    }

    int d() const {
        return index_->d;
    }
    int64_t ntotal() const {
        return index_->ntotal;
    }
    bool is_trained() const {
        return index_->is_trained;
    }
    size_t nlist() const {
        return extract_index_ivf(index_.get())->nlist;
    }
    size_t nprobe() const {
        return extract_index_ivf(index_.get())->nprobe;
    }
    void set_nprobe(size_t nprobe) {
        FLASHGMM_THROW_IF_NOT_FMT(nprobe >= 1, "nprobe = %zu", nprobe);
        extract_index_ivf(index_.get())->nprobe = nprobe;
    }
    std::string description() const {
        return index_description(*index_);
    }
    double entries_per_vector() const {
        const IVFMultiAssign* const ours = find_multi_assign(*index_);
        return ours ? ours->entries_per_vector() : 1;
    }
    /// (means, variances, weights)
    std::optional<nb::tuple> mixture() const {
        const IVFMultiAssign* const ours = find_multi_assign(*index_);
        if (ours == nullptr || ours->mixture().k == 0) {
            return {};
        }
        Mixture mixture = ours->mixture();
        const auto k = size_t(mixture.k);
        return nb::make_tuple(
                to_numpy(std::move(mixture.means), {k, size_t(mixture.d)}),
                to_numpy(std::move(mixture.variances), {k}),
                to_numpy(std::move(mixture.weights), {k}));
    }

   private:
    /// Queries that take less than a second: not all versions of FAISS look
    /// for signals in a search.
    size_t queries_at_once() const {
        constexpr double kFlops = 1e9;
        const double flops = double(index_->ntotal) * index_->d *
                double(std::min(nprobe(), nlist())) / double(nlist());
        return size_t(std::clamp(kFlops / (flops + 1), 64.0, 1e6));
    }

    std::unique_ptr<faiss::Index> index_;
};

/** The lists of rows beyond the primary ones, shape (n, lists): see
 * MultiAssign::choose() for a bulk load.
 *
 * @param options       of MultiAssign, as in "policy=soar"
 * @param variances, weights  of the mixture whose means are the centroids, or
 *                      empty
 * @param queries       for `demand`; null: learn_from stands for them
 */
Output<int64_t> choose_lists(
        const Options& options,
        const Vectors& centroids,
        bool inner_product,
        const std::vector<double>& variances,
        const std::vector<double>& weights,
        const Vectors& x,
        const Array<int64_t, 1>& primary,
        const Vectors& learn_from,
        const std::optional<Vectors>& queries) {
    MultiAssign assigner = make_assigner(options);
    const size_t n = x.shape(0);
    const auto d = int64_t(centroids.shape(1));
    check_dimension("x", x, d);
    check_dimension("learn_from", learn_from, d);
    if (queries) {
        check_dimension("queries", *queries, d);
    }
    FLASHGMM_THROW_IF_NOT_FMT(
            primary.shape(0) == n,
            "%zu primary lists for %zu vectors",
            primary.shape(0),
            n);
    const auto width = size_t(assigner.max_lists() - 1);
    std::vector<int64_t> extra(n * width);
    without_gil([&] {
        faiss::IndexFlat quantizer(
                d,
                inner_product ? faiss::METRIC_INNER_PRODUCT : faiss::METRIC_L2);
        quantizer.add(idx_t(centroids.shape(0)), centroids.data());
        Mixture mixture;
        if (!variances.empty()) {
            mixture = make_mixture(centroids, variances, weights);
        }
        check_finite(idx_t(n), size_t(d), x.data());
        if (assigner.needs_learning(true)) {
            learn(assigner, quantizer, mixture, learn_from, queries);
        }
        assigner.choose(
                quantizer,
                mixture,
                idx_t(n),
                x.data(),
                primary.data(),
                true,
                extra.data());
    });
    return to_numpy(std::move(extra), {n, width});
}

/** The first k different ids of each row of results, best first; -1, with
 * distance `no_result`, where there are no more.
 */
nb::tuple unique(
        const Array<float, 2>& distances,
        const Array<int64_t, 2>& ids,
        int64_t k,
        float no_result) {
    const size_t n = ids.shape(0);
    const size_t width = ids.shape(1);
    FLASHGMM_THROW_IF_NOT_FMT(
            k >= 1 && distances.shape(0) == n && distances.shape(1) == width,
            "k = %lld of distances of shape (%zu, %zu) and ids of (%zu, %zu)",
            static_cast<long long>(k),
            distances.shape(0),
            distances.shape(1),
            n,
            width);
    std::vector<float> distances_out(n * k);
    std::vector<int64_t> ids_out(n * k);
    SeenIds seen;
    for (size_t i = 0; i < n; i++) {
        unique_topk(
                width,
                distances.data() + i * width,
                ids.data() + i * width,
                [](idx_t id) { return id; },
                no_result,
                size_t(k),
                distances_out.data() + i * k,
                ids_out.data() + i * k,
                seen);
    }
    return nb::make_tuple(
            to_numpy(std::move(distances_out), {n, size_t(k)}),
            to_numpy(std::move(ids_out), {n, size_t(k)}));
}

} // namespace

void bind_index(nb::module_& m) {
    nb::register_exception_translator([](const std::exception_ptr& e, void*) {
        try {
            std::rethrow_exception(e);
        } catch (const faiss::FaissException& error) {
            PyErr_SetString(PyExc_ValueError, plain_message(error).c_str());
        }
    });
    if (!faiss::InterruptCallback::instance) {
        faiss::InterruptCallback::instance = std::make_unique<SignalCheck>();
    }
    m.attr("faiss_version") = std::to_string(FAISS_VERSION_MAJOR) + "." +
            std::to_string(FAISS_VERSION_MINOR) + "." +
            std::to_string(FAISS_VERSION_PATCH);
    m.def("choose_lists",
          &choose_lists,
          "options"_a,
          "centroids"_a,
          "inner_product"_a,
          "variances"_a,
          "weights"_a,
          "x"_a,
          "primary"_a,
          "learn_from"_a,
          "queries"_a = nb::none());
    m.def("unique", &unique, "distances"_a, "ids"_a, "k"_a, "no_result"_a);
    nb::class_<Index>(m, "Index")
            .def_static(
                    "from_description",
                    &Index::from_description,
                    "d"_a,
                    "description"_a,
                    "inner_product"_a)
            .def_static("read", &Index::read, "path"_a)
            .def_static("from_bytes", &Index::from_bytes, "bytes"_a)
            .def_static(
                    "from_stock_bytes",
                    &Index::from_stock_bytes,
                    "bytes"_a,
                    "options"_a,
                    "means"_a.none(),
                    "variances"_a,
                    "weights"_a,
                    "learn_from"_a = nb::none(),
                    "queries"_a = nb::none())
            .def("write", &Index::write, "path"_a)
            .def("to_bytes", &Index::to_bytes)
            .def("to_stock_bytes", &Index::to_stock_bytes, "copies"_a)
            .def("train", &Index::train, "x"_a, "queries"_a = nb::none())
            .def("add", &Index::add, "x"_a, "ids"_a = nb::none())
            .def("remove_ids", &Index::remove_ids, "ids"_a)
            .def("reset", &Index::reset)
            .def("search", &Index::search, "q"_a, "k"_a)
            .def_prop_ro("d", &Index::d)
            .def_prop_ro("ntotal", &Index::ntotal)
            .def_prop_ro("is_trained", &Index::is_trained)
            .def_prop_ro("nlist", &Index::nlist)
            .def_prop_rw("nprobe", &Index::nprobe, &Index::set_nprobe)
            .def_prop_ro("description", &Index::description)
            .def_prop_ro("entries_per_vector", &Index::entries_per_vector)
            .def_prop_ro("mixture", &Index::mixture);
}

} // namespace faiss_flashgmm
