// Exact neighbors on a GPU, and what `demand` takes with them and without.
//
//     bench_neighbors BASE K NLIST RUNS CPU_RUNS [ROWS] [>> RESULTS]
//
// BASE is a vector file, of which the first ROWS are taken, or "1000000x128"
// for rows drawn around 256 centers. The K nearest of all rows among all others
// are found RUNS times, from host memory to host memory; 50 of them are
// compared with fp64. Then, unless NLIST is 0, the policy `demand` learns from
// all rows over NLIST centroids, and chooses a second list for each: on the GPU
// RUNS times, on the CPU CPU_RUNS times. The first run is left out of the
// medians if there are more.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <omp.h>

#include <faiss/IndexFlat.h>

#include <faiss_flashgmm/Demand.h>
#include <faiss_flashgmm/GpuFlashGMMClustering.h>
#include <faiss_flashgmm/gpu/NearestRows.h>
#include <faiss_flashgmm/io/open_vectors.h>
#include <faiss_flashgmm/utils/Error.h>
#include <faiss_flashgmm/utils/Json.h>
#include <faiss_flashgmm/utils/Timer.h>

namespace {

using namespace faiss_flashgmm;

double median(std::vector<double> values) {
    if (values.size() > 1) {
        values.erase(values.begin());
    }
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

Matrix<float> drawn_rows(int64_t n, int64_t d) {
    constexpr int64_t kCenters = 256;
    Matrix<float> x;
    x.n = n;
    x.d = d;
    x.values.resize(n * d);
    std::vector<float> centers(kCenters * d);
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (float& v : centers) {
        v = normal(random);
    }
#pragma omp parallel for schedule(static)
    for (int64_t begin = 0; begin < n; begin += 1024) {
        std::mt19937 own(unsigned(begin + 2));
        std::normal_distribution<float> noise(0, 0.6f);
        for (int64_t i = begin; i < std::min(n, begin + 1024); i++) {
            const float* center = &centers[own() % kCenters * d];
            for (int64_t j = 0; j < d; j++) {
                x.values[i * d + j] = center[j] + noise(own);
            }
        }
    }
    return x;
}

Matrix<float> rows_of(const std::string& base, int64_t rows) {
    const size_t cross = base.find('x');
    const std::string digits = "0123456789x";
    return cross != std::string::npos &&
                    base.find_first_not_of(digits) == std::string::npos
            ? drawn_rows(
                      std::atoll(base.c_str()),
                      std::atoll(base.c_str() + cross + 1))
            : read_vectors(base, rows);
}

/// The largest relative error of the distances of some rows.
double largest_error(
        const Matrix<float>& x,
        int64_t k,
        const std::vector<float>& distances) {
    constexpr int64_t kChecked = 50;
    double worst = 0;
#pragma omp parallel for reduction(max : worst)
    for (int64_t c = 0; c < kChecked; c++) {
        const int64_t i = c * (x.n / kChecked);
        std::vector<double> exact;
        for (int64_t b = 0; b < x.n; b++) {
            double sum = 0;
            for (int64_t j = 0; j < x.d; j++) {
                const double difference =
                        double(x.values[i * x.d + j]) - x.values[b * x.d + j];
                sum += difference * difference;
            }
            if (b != i) {
                exact.push_back(sum);
            }
        }
        std::partial_sort(exact.begin(), exact.begin() + k, exact.end());
        for (int64_t r = 0; r < k; r++) {
            worst = std::max(
                    worst,
                    std::abs(distances[i * k + r] - exact[r]) /
                            std::max(exact[r], 1e-30));
        }
    }
    return worst;
}

void time_neighbors(
        const std::string& name,
        const Matrix<float>& x,
        int64_t k,
        int runs) {
    std::vector<int64_t> self(x.n);
    for (int64_t i = 0; i < x.n; i++) {
        self[i] = i;
    }
    std::vector<float> distances(x.n * k);
    std::vector<int64_t> ids(x.n * k);
    std::vector<double> base_seconds, seconds;
    int64_t bytes = 0;
    for (int i = 0; i < runs; i++) {
        Timer timer;
        NearestRows rows({}, x.n, x.d, x.values.data(), false);
        base_seconds.push_back(timer.seconds());
        timer = Timer();
        rows.nearest(
                x.n,
                x.values.data(),
                k,
                self.data(),
                distances.data(),
                ids.data());
        seconds.push_back(timer.seconds());
        bytes = rows.peak_device_bytes();
    }
    std::printf(
            "%s\n",
            JsonObject()
                    .add("bench", "bench_neighbors")
                    .add("data", name)
                    .add("n", x.n)
                    .add("d", x.d)
                    .add("k", k)
                    .add("seconds_base", median(base_seconds))
                    .add("seconds", median(seconds))
                    .add("peak_device_bytes", bytes)
                    .add("largest_error", largest_error(x, k, distances))
                    .str()
                    .c_str());
    std::fflush(stdout);
}

struct Chosen {
    std::vector<idx_t> lists;
    std::vector<float> scores;
};

Chosen time_demand(
        const std::string& name,
        const Matrix<float>& x,
        const faiss::IndexFlat& quantizer,
        NeighborSearch search,
        int runs) {
    DemandParameters parameters;
    parameters.search = search;
    std::vector<idx_t> primary(x.n);
    quantizer.assign(x.n, x.values.data(), primary.data());
    Chosen chosen;
    std::vector<double> learning, choosing;
    for (int i = 0; i < runs; i++) {
        Timer timer;
        Demand demand;
        demand.learn(quantizer, parameters, x.n, x.values.data(), 0, nullptr);
        learning.push_back(timer.seconds());
        chosen.lists.assign(x.n, -1);
        chosen.scores.assign(x.n, -INFINITY);
        timer = Timer();
        demand.extra_lists(
                quantizer,
                parameters,
                x.n,
                x.values.data(),
                primary.data(),
                1,
                chosen.lists.data(),
                chosen.scores.data());
        choosing.push_back(timer.seconds());
    }
    std::printf(
            "%s\n",
            JsonObject()
                    .add("bench", "bench_neighbors")
                    .add("data", name)
                    .add("n", x.n)
                    .add("d", x.d)
                    .add("nlist", int64_t(quantizer.ntotal))
                    .add("search",
                         search == NeighborSearch::cpu ? "cpu" : "gpu")
                    .add("threads", omp_get_max_threads())
                    .add("learn_seconds", median(learning))
                    .add("choose_seconds", median(choosing))
                    .str()
                    .c_str());
    std::fflush(stdout);
    return chosen;
}

/// Of the rows, those that get the same second list; and of their scores.
void compare(const Chosen& a, const Chosen& b) {
    int64_t same = 0;
    for (size_t i = 0; i < a.lists.size(); i++) {
        same += a.lists[i] == b.lists[i];
    }
    std::printf(
            "%s\n",
            JsonObject()
                    .add("bench", "bench_neighbors")
                    .add("same_lists", double(same) / double(a.lists.size()))
                    .str()
                    .c_str());
}

} // namespace

int main(int argc, char** argv) {
    if (argc < 6 || argc > 7) {
        std::fprintf(
                stderr,
                "usage: bench_neighbors BASE K NLIST RUNS CPU_RUNS [ROWS]\n");
        return 2;
    }
    try {
        const std::string base = argv[1];
        const int64_t k = std::atoll(argv[2]);
        const int64_t nlist = std::atoll(argv[3]);
        const int runs = std::max(1, std::atoi(argv[4]));
        const int cpu_runs = std::atoi(argv[5]);
        const Matrix<float> x =
                rows_of(base, argc > 6 ? std::atoll(argv[6]) : -1);
        const std::string name = base.substr(base.rfind('/') + 1);
        time_neighbors(name, x, k, runs);
        if (nlist > 0) {
            faiss::IndexFlatL2 quantizer(x.d);
            GpuFlashGMMClustering clustering(int(x.d), int(nlist));
            clustering.train(x.n, x.values.data(), quantizer);
            const Chosen gpu =
                    time_demand(name, x, quantizer, NeighborSearch::gpu, runs);
            if (cpu_runs > 0) {
                const Chosen cpu = time_demand(
                        name, x, quantizer, NeighborSearch::cpu, cpu_runs);
                compare(gpu, cpu);
            }
        }
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
