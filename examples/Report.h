#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// What a search with nprobe lists a query found and cost.
struct Measurement {
    int64_t nprobe = 0;
    double recall = 0;  ///< of the 10 nearest, mean over the queries
    double scanned = 0; ///< stored entries read for a query, copies counted
    double milliseconds = 0; ///< of a query, in a batch on all threads

    std::vector<double> recall_of_query;  ///< whose mean is `recall`
    std::vector<double> scanned_of_query; ///< whose mean is `scanned`
};

/// One way to choose lists, with one codec, on one data set.
struct Method {
    std::string name;
    std::string model; ///< what placed the centroids: one color in the figure
    bool is_reference = false; ///< what the others are compared with
    bool has_copies = false;   ///< a vector may be in two lists
    double entries_per_vector = 1;
    double train_seconds = 0;              ///< of the centroids
    std::vector<Measurement> measurements; ///< nprobe increasing
};

struct Experiment {
    std::string dataset;
    std::string codec;
    int64_t n = 0;
    int64_t d = 0;
    int64_t nlist = 0;
    int64_t nqueries = 0;
    int threads = 0;
    std::vector<Method> methods; ///< one of them the reference
};

/// The numbers of all methods, one block a method, one column an nprobe.
void print_table(const Experiment& experiment);

/// What an equal recall costs with each method: lists, work, memory.
void print_findings(const Experiment& experiment);

/// Where mixtures win and where they lose, over all experiments.
void print_summary(const std::vector<Experiment>& experiments);

/// A JSON array with one object on each line: a method at an nprobe.
void write_json(
        const std::vector<Experiment>& experiments,
        const std::string& path);

/// Two panels for each experiment of the codec: recall against nprobe and
/// against entries scanned.
void write_figure(
        const std::vector<Experiment>& experiments,
        const std::string& codec,
        const std::string& path);
