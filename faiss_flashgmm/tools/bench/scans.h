#pragma once

#include <string>
#include <vector>

#include <faiss_flashgmm/MultiAssign.h>
#include <faiss_flashgmm/ScanCurve.h>
#include <faiss_flashgmm/tools/bench/BenchCase.h>
#include <faiss_flashgmm/tools/bench/BenchRows.h>
#include <faiss_flashgmm/tools/bench/Centroids.h>

namespace faiss_flashgmm {

/// A policy from the options of MA(...) in a factory string, without the
/// parentheses (docs/factory.md).
MultiAssign parse_policy(const std::string& options);

/// What rows name as codec where lists and probing order alone say what
/// searches over flat codes find and scan: no index is built.
inline constexpr const char* kScans = "scans";

/// Whether there are rows of scans for all policies.
bool has_scans(
        const BenchCase& bench,
        const std::string& centroids,
        const std::vector<std::string>& policies,
        const BenchRows& rows);

/// Recall@10 and entries scanned with one list a vector.
ScanCurve scans_of_single(const BenchCase& bench, const Centroids& centroids);

/** Measures the policies that `rows` does not have yet.
 *
 * A row holds, for each of some nprobe, recall_1, recall_10, recall_100,
 * entries scanned and distinct vectors scanned a query; and scan_gain_r80 to
 * _r99: what the reference scans for that recall@10, over what this does.
 *
 * @param policies  as parse_policy() reads them
 */
void bench_scans(
        const BenchCase& bench,
        const Centroids& centroids,
        const std::vector<std::string>& policies,
        const ScanCurve& reference,
        BenchRows& rows);

/// The head of the table that bench_scans() prints.
std::string scans_header();

} // namespace faiss_flashgmm
