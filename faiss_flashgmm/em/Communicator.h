#pragma once

#include <cstdint>
#include <span>

namespace faiss_flashgmm {

/// The peers that share a fit, each with its own rows. One process alone is a
/// communicator of size 1.
class Communicator {
   public:
    virtual ~Communicator() = default;

    virtual int rank() const = 0;
    virtual int size() const = 0;

    /// Replaces values by their sum over the peers, in an order that is the
    /// same on all of them.
    virtual void all_reduce_sum(std::span<double> values) = 0;

    /// Replaces values by those of the peer `root`.
    virtual void broadcast(std::span<double> values, int root) = 0;
};

class SelfCommunicator : public Communicator {
   public:
    int rank() const override {
        return 0;
    }
    int size() const override {
        return 1;
    }
    void all_reduce_sum(std::span<double>) override {}
    void broadcast(std::span<double>, int) override {}
};

} // namespace faiss_flashgmm
