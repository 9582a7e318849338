#include <faiss_flashgmm/io/open_vectors.h>

#include <string_view>
#include <utility>

#include <faiss_flashgmm/io/Hdf5Rows.h>
#include <faiss_flashgmm/utils/memory.h>

namespace faiss_flashgmm {

namespace {

struct Hdf5Name {
    std::string path; ///< empty if the name is of another format
    std::string dataset;
};

Hdf5Name split_hdf5(const std::string& name, const char* default_dataset) {
    for (const std::string_view end : {".hdf5", ".h5"}) {
        if (name.ends_with(end)) {
            return {name, default_dataset};
        }
        const size_t at = name.rfind(std::string(end) + ':');
        if (at != name.npos) {
            const size_t colon = at + end.size();
            return {name.substr(0, colon), name.substr(colon + 1)};
        }
    }
    return {};
}

/// The first rows of another source.
class FirstRows : public RowSource {
   public:
    FirstRows(std::unique_ptr<RowSource> base, int64_t n)
            : base_(std::move(base)), n_(n) {}

    int64_t size() const override {
        return n_;
    }
    int64_t dim() const override {
        return base_->dim();
    }
    Rows read(int64_t begin, int64_t count) override {
        return base_->read(begin, count);
    }

   private:
    std::unique_ptr<RowSource> base_;
    int64_t n_;
};

} // namespace

std::unique_ptr<RowSource> open_vectors(
        const std::string& path,
        int64_t max_rows) {
    std::unique_ptr<RowSource> rows;
    const Hdf5Name hdf5 = split_hdf5(path, "train");
    if (hdf5.path.empty()) {
        rows = std::make_unique<VectorFile>(path);
    } else {
        rows = std::make_unique<Hdf5Rows>(hdf5.path, hdf5.dataset);
    }
    if (max_rows >= 0 && max_rows < rows->size()) {
        return std::make_unique<FirstRows>(std::move(rows), max_rows);
    }
    return rows;
}

Matrix<float> read_vectors(const std::string& path, int64_t max_rows) {
    return read_all(*open_vectors(path, max_rows));
}

Matrix<int32_t> read_ids(const std::string& path) {
    const Hdf5Name hdf5 = split_hdf5(path, "neighbors");
    if (!hdf5.path.empty()) {
        return Hdf5Rows(hdf5.path, hdf5.dataset).read_ids();
    }
    const VectorFile file(path);
    Matrix<int32_t> ids{file.size(), file.dim(), {}};
    resize_or_throw(ids.values, uint64_t(ids.n) * ids.d, "all ids");
    file.read_as(0, ids.n, ids.values.data());
    return ids;
}

} // namespace faiss_flashgmm
