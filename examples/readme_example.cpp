#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include <faiss/IndexFlat.h>

#include <faiss_flashgmm/IndexIVFMultiAssign.h>

/// n vectors of 64 overlapping clusters.
std::vector<float> make_vectors(int n, int d) {
    std::vector<float> x(n * d);
    std::mt19937 random(1);
    std::normal_distribution<float> noise;
    for (int i = 0; i < n * d; i++) {
        x[i] = std::sin(i / d % 64 * (i % d + 1)) + 0.6f * noise(random);
    }
    return x;
}

int main() {
    const int d = 32, n = 20000, nlist = 64, k = 5;
    const std::vector<float> x = make_vectors(n, d); // yours

    faiss::IndexFlatL2 quantizer(d);
    faiss_flashgmm::IndexIVFFlatMultiAssign index(&quantizer, d, nlist);
    index.train(n, x.data()); // fits a mixture where FAISS runs k-means
    index.add(n, x.data());   // border vectors go into two lists
    index.nprobe = 8;

    std::vector<float> distances(k);
    std::vector<faiss::idx_t> ids(k); // never the same id twice
    index.search(1, x.data(), k, distances.data(), ids.data());
    std::printf("%.2f entries a vector\n", index.entries_per_vector());
    return ids[0] == 0 ? 0 : 1;
}
