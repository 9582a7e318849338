#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <span>
#include <thread>

#include <gtest/gtest.h>

#include "fits.h"

namespace {

using namespace faiss_flashgmm;

/// Peers that are threads of this process.
class ThreadPeers {
   public:
    explicit ThreadPeers(int size) : size_(size) {}

    class Peer : public Communicator {
       public:
        Peer(ThreadPeers& all, int rank) : all_(all), rank_(rank) {}
        int rank() const override {
            return rank_;
        }
        int size() const override {
            return all_.size_;
        }
        void all_reduce_sum(std::span<double> values) override {
            all_.exchange(rank_, values, -1);
        }
        void broadcast(std::span<double> values, int root) override {
            all_.exchange(rank_, values, root);
        }

       private:
        ThreadPeers& all_;
        int rank_;
    };

   private:
    void exchange(int rank, std::span<double> values, int root) {
        std::unique_lock<std::mutex> lock(mutex_);
        const int64_t round = round_;
        parts_.resize(size_);
        parts_[rank].assign(values.begin(), values.end());
        if (++arrived_ == size_) {
            result_.assign(values.size(), 0.0);
            for (int r = 0; r < size_; r++) {
                for (size_t i = 0; i < values.size(); i++) {
                    if (root < 0 || root == r) {
                        result_[i] += parts_[r][i];
                    }
                }
            }
            arrived_ = 0;
            round_++;
            changed_.notify_all();
        }
        changed_.wait(lock, [&] { return round_ > round; });
        std::copy(result_.begin(), result_.end(), values.begin());
    }

    const int size_;
    std::mutex mutex_;
    std::condition_variable changed_;
    int arrived_ = 0;
    int64_t round_ = 0;
    std::vector<std::vector<double>> parts_;
    std::vector<double> result_;
};

std::vector<EMResult> fit_on_peers(
        const std::vector<float>& x,
        int64_t d,
        int64_t k,
        const EMOptions& options,
        const Mixture* start,
        const std::vector<int64_t>& shares,
        std::vector<std::string>& errors) {
    const int size = int(shares.size());
    ThreadPeers peers(size);
    std::vector<EMResult> results(size);
    errors.assign(size, "");
    std::vector<std::thread> threads;
    int64_t first = 0;
    for (int rank = 0; rank < size; rank++) {
        threads.emplace_back([&, rank, first] {
            errors[rank] = message_of([&] {
                CpuBackend backend;
                ThreadPeers::Peer peer(peers, rank);
                MemoryRows rows(shares[rank], d, x.data() + first * d);
                results[rank] =
                        EMSolver(backend, options, peer).fit(rows, k, start);
            });
        });
        first += shares[rank];
    }
    for (std::thread& t : threads) {
        t.join();
    }
    return results;
}

TEST(EMSolver, PeersFitWhatOneProcessFits) {
    const int64_t n = 900, d = 5, k = 7;
    const std::vector<float> x = make_blobs(n, d, k, 1.5);
    Mixture start(k, d);
    start.means = given_start(x, d, k).means;
    EMOptions options;
    options.niter = 3;
    const EMResult alone = fit(x, d, k, options, &start);
    std::vector<std::string> errors;
    const auto results =
            fit_on_peers(x, d, k, options, &start, {500, 3, 397}, errors);
    for (int rank = 0; rank < 3; rank++) {
        EXPECT_EQ(errors[rank], "");
        EXPECT_EQ(results[rank].mixture.means, results[0].mixture.means);
        EXPECT_EQ(results[rank].rows_used, n);
    }
    EXPECT_LT(difference(results[0].mixture, alone.mixture), 1e-6);
    EXPECT_NEAR(
            results[0].iterations.back().log_likelihood,
            alone.iterations.back().log_likelihood,
            1e-9);
    // Without given means, peers agree on what rank 0 draws.
    const auto drawn =
            fit_on_peers(x, d, k, options, nullptr, {500, 3, 397}, errors);
    EXPECT_EQ(drawn[2].mixture.means, drawn[0].mixture.means);
    expect_valid(drawn[0]);
}

TEST(EMSolver, ABadRowStopsAllPeers) {
    std::vector<float> x = make_blobs(900, 5, 7, 1.5);
    x[600 * 5 + 1] = NAN;
    std::vector<std::string> errors;
    fit_on_peers(x, 5, 7, {}, nullptr, {500, 400}, errors);
    EXPECT_TRUE(contains(errors[0], "another peer")) << errors[0];
    EXPECT_TRUE(contains(errors[1], "row 100 ")) << errors[1];
}

} // namespace
