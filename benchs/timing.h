#pragma once

#include <time.h>

#include <algorithm>
#include <vector>

namespace faiss_flashgmm {

/// CPU time of this process so far, of all its threads.
inline double cpu_seconds() {
    timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

/// Of an odd number of values; of an even one the upper of the middle two.
inline double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

} // namespace faiss_flashgmm
