"""faiss.Kmeans, and the same with a mixture in its place.

    python examples/python/replace_kmeans.py
"""

import pathlib
import time

import faiss
import faiss_flashgmm as fg
import numpy as np

DATA = pathlib.Path(__file__).parents[2] / "data"
CLUSTERS = 64


def main():
    rows = fg.open_vectors(DATA / "sift10k_base.bvecs")
    x = rows.read(0, rows.shape[0])
    print("                  seconds  mean squared distance  largest / mean")
    for package in (faiss, fg):
        kmeans = package.Kmeans(x.shape[1], CLUSTERS, niter=20, seed=1)
        start = time.perf_counter()
        kmeans.train(x)
        seconds = time.perf_counter() - start
        distances, nearest = kmeans.assign(x)
        sizes = np.bincount(nearest, minlength=CLUSTERS)
        print(
            f"{package.__name__:15}  {seconds:7.2f}"
            f"  {distances.mean():21.0f}  {sizes.max() / sizes.mean():14.2f}"
        )
    shares = kmeans.mixture.responsibilities(x, m=2)[1]
    doubtful = np.mean(shares[:, 1] > 1 / CLUSTERS)
    print(
        f"{doubtful:.0%} of the vectors belong to a second cluster by more than "
        f"1 / {CLUSTERS}: what k-means does not say"
    )


if __name__ == "__main__":
    main()
