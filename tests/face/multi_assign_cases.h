#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <faiss/IndexIVF.h>
#include <faiss/impl/IDSelector.h>

#include <faiss_flashgmm/IndexIVFMultiAssign.h>

// Small clustered data and every kind of multi-assign index over it.
namespace faiss_flashgmm::testing {

constexpr int kDim = 16;
constexpr int kLists = 32;
constexpr idx_t kRows = 1000;
constexpr idx_t kQueries = 40;

/// Rows around `clusters` random centres; clusters overlap at their borders.
std::vector<float> clustered_rows(
        idx_t n,
        int d,
        int clusters,
        unsigned seed,
        unsigned centre_seed = 7);

const std::vector<float>& base_rows();  ///< kRows * kDim
const std::vector<float>& query_rows(); ///< kQueries * kDim

enum class Codec {
    flat,
    sq8,
    sq6_without_residuals,
    pq,
    pq_without_residuals,
    fast_scan, ///< without residuals, as FAISS makes it
    fast_scan_residuals,
    rabitq, ///< these two since FAISS 1.11 and 1.13
    rabitq_fast_scan,
};

/// What stock FAISS offers with a codec; ours throws for the rest.
struct Offer {
    bool parameters = true; ///< SearchParametersIVF, and search_preassigned
    bool max_codes = true;
    bool pairs = true; ///< store_pairs, so search_and_reconstruct
    bool range = true;
    bool range_given_lists = true; ///< range_search_preassigned
    bool negative_ids = true;
    bool search1 = FAISS_FLASHGMM_HAS_SEARCH1;
    bool blocks = false; ///< FastScan: no parallel_mode, exceptions in a search
                         ///< end the process
};
Offer offer_of(Codec codec);

struct Case {
    Codec codec = Codec::flat;
    faiss::MetricType metric = faiss::METRIC_L2;
    AssignPolicy policy = AssignPolicy::posterior;

    std::string name() const;
    Offer offer() const {
        return offer_of(codec);
    }
};

/// All combinations with a second list that this FAISS has.
std::vector<Case> all_cases();
/// A few of them, with each codec, metric and policy.
std::vector<Case> some_cases();
std::string case_name(const ::testing::TestParamInfo<Case>& info);

/// A FAISS index and its other face.
struct MultiIndex {
    std::unique_ptr<faiss::IndexIVF> ivf;
    IVFMultiAssign* multi = nullptr;

    faiss::IndexIVF* operator->() const {
        return ivf.get();
    }
    faiss::IndexIVF& operator*() const {
        return *ivf;
    }
};

MultiIndex make_untrained(const Case& c, int d = kDim, int nlist = kLists);
MultiIndex make_trained(const Case& c);           ///< on base_rows()
MultiIndex make_filled(const Case& c);            ///< base_rows() in it
MultiIndex copy_of_empty(const MultiIndex& from); ///< same centroids, codec

/// Calls f with a multi-assign index as what it is.
template <class F>
void as_its_type(faiss::IndexIVF& index, const F& f) {
#define FLASHGMM_TRY(type)                                        \
    if (auto* typed = dynamic_cast<type##MultiAssign*>(&index)) { \
        return f(*typed);                                         \
    }
    FAISS_FLASHGMM_FOR_EACH_CODEC(FLASHGMM_TRY)
#undef FLASHGMM_TRY
    FAIL() << "no multi-assign index";
}

/// A stock index with the centroids and the codec of another, empty. Shares
/// the quantizer.
std::unique_ptr<faiss::IndexIVF> stock_twin(faiss::IndexIVF& index);

/// Has stock FAISS store rows in given lists.
void add_to_lists(
        faiss::IndexIVF& stock,
        const std::vector<float>& rows,
        const std::vector<idx_t>& ids,
        const std::vector<idx_t>& lists);

/// Not virtual in FAISS, for an index of either kind.
void set_direct_map_type(faiss::IndexIVF& index, faiss::DirectMap::Type type);

std::vector<idx_t> assigned_lists(
        const MultiIndex& index,
        const std::vector<float>& rows);

/// The lists that hold an id.
std::vector<size_t> lists_of(const faiss::IndexIVF& index, idx_t id);

struct Results {
    idx_t k = 0;
    std::vector<float> distances;
    std::vector<idx_t> labels;

    bool operator==(const Results&) const = default;
};

Results search(
        const faiss::Index& index,
        const std::vector<float>& queries,
        idx_t k,
        const faiss::SearchParameters* params = nullptr);

/// All results of a range search, per query, sorted by id.
std::vector<std::vector<std::pair<idx_t, float>>> range_search(
        const faiss::Index& index,
        const std::vector<float>& queries,
        float radius,
        const faiss::SearchParameters* params = nullptr);

/// The ids of each query are different, those missing (-1) come last, and the
/// distances are in order.
void expect_well_formed(const Results& results, faiss::MetricType metric);

/// What a search should find: each vector is in a stock index with its
/// primary list, in a second one with its second list, and so on.
class Oracle {
   public:
    Oracle(const MultiIndex& index,
           const std::vector<float>& rows,
           const std::vector<idx_t>& ids = {});

    /// Distances equal exactly; ids equal but for the order of ties.
    void expect_equal(
            const faiss::IndexIVF& index,
            const std::vector<float>& queries,
            idx_t k,
            const std::function<bool(idx_t)>& selected = {}) const;

    void expect_equal_range(
            const faiss::IndexIVF& index,
            const std::vector<float>& queries,
            float radius) const;

   private:
    bool has_ties_;  ///< as all but flat codes
    bool fast_scan_; ///< may search again, for one query
    std::vector<std::unique_ptr<faiss::IndexIVF>> parts_;
};

/// Message of the FaissException that f throws; fails if it throws nothing.
std::string message_of(const std::function<void()>& f);

/// An IDSelector made from a function.
struct Selector : faiss::IDSelector {
    std::function<bool(idx_t)> selected;
    explicit Selector(std::function<bool(idx_t)> f) : selected(std::move(f)) {}
    bool is_member(idx_t id) const override {
        return selected(id);
    }
};

} // namespace faiss_flashgmm::testing
