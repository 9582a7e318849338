#include <cmath>
#include <iostream>
#include <random>
#include <vector>

#include <faiss/IndexFlat.h>
#include <faiss_flashgmm/IndexIVFMultiAssign.h>

int main() {
    const int d = 32, n = 20000, nlist = 64, k = 5;
    std::vector<float> x(n * d); // your vectors; here 64 overlapping clusters
    std::mt19937 random(1);
    std::normal_distribution<float> noise;
    for (int i = 0; i < n * d; i++)
        x[i] = std::sin(i / d % 64 * (i % d + 1)) + 0.6f * noise(random);

    faiss::IndexFlatL2 quantizer(d);
    faiss_flashgmm::IndexIVFFlatMultiAssign index(&quantizer, d, nlist);
    index.train(n, x.data()); // fits a mixture where FAISS runs k-means
    index.add(n, x.data());   // border vectors go into two lists
    index.nprobe = 8;

    std::vector<float> distances(k);
    std::vector<faiss::idx_t> ids(k); // never the same id twice
    index.search(1, x.data(), k, distances.data(), ids.data());
    std::cout << index.ntotal << " vectors in " << index.nentries()
              << " entries; nearest to vector 0: " << ids[0] << "\n";
    return ids[0] == 0 ? 0 : 1;
}
