#include <cstdio>
#include <random>
#include <vector>

#include <faiss/IndexFlat.h>
#include <faiss/IndexIVFFlat.h>

#include <faiss_flashgmm/train_ivf.h>

int main() {
    const int d = 8, nlist = 4, n = 1000;
    std::mt19937 rng(1);
    std::normal_distribution<float> normal;
    std::vector<float> x(size_t(n) * d);
    for (float& v : x) {
        v = normal(rng);
    }

    faiss::IndexFlatL2 quantizer(d);
    faiss::IndexIVFFlat index(&quantizer, d, nlist);
    const auto clustering = faiss_flashgmm::train_ivf(index, n, x.data());
    index.add(n, x.data());

    const bool trained = clustering.mixture.k == nlist &&
            quantizer.ntotal == nlist && index.ntotal == n;
    std::printf("%s\n", trained ? "trained" : "not trained");
    return trained ? 0 : 1;
}
