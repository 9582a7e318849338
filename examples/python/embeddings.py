"""Text embeddings in an IVF-PQ index whose lists come from a mixture.

50,000 word vectors (GloVe, data/) are compressed to 25 bytes each. The same
index is built twice: by FAISS alone, and with a mixture as coarse quantizer and
border vectors in two lists. Both are compared at the same number of lists
probed, and at what that costs: codes scanned.

    python examples/python/embeddings.py
"""

import pathlib

import faiss
import faiss_flashgmm as fg
import numpy as np

DATA = pathlib.Path(__file__).parents[2] / "data"
LISTS = 256


def read_all(name):
    rows = fg.open_vectors(DATA / name)
    return rows.read(0, rows.shape[0])


def new_index(d):
    return faiss.index_factory(d, f"IVF{LISTS},PQ50x4np")


def measure(search, index, queries, truth, nprobe):
    """Recall@10, and codes scanned a query."""
    index.nprobe = nprobe
    faiss.cvar.indexIVF_stats.reset()
    ids = search(queries, 10)[1]
    found = [len(set(a) & set(b)) for a, b in zip(ids, truth)]
    scanned = faiss.cvar.indexIVF_stats.ndis / len(queries)
    return np.mean(found) / 10, scanned


def main():
    x = read_all("glove50k_base.f16bin")
    queries = read_all("glove50k_query.f16bin")
    truth = np.fromfile(DATA / "glove50k_groundtruth.ivecs", dtype=np.int32)
    truth = truth.reshape(len(queries), -1)[:, 1:11]

    stock = new_index(x.shape[1])
    stock.train(x)
    stock.add(x)

    soft = new_index(x.shape[1])
    mixture = fg.train_ivf(soft, x)  # instead of soft.train(x)
    entries = fg.add_multi(soft, x, mixture=mixture)  # instead of soft.add(x)

    print(f"{entries:.2f} codes a vector in two lists, 1 in one")
    print("           k-means, one list    mixture, two lists")
    print("  nprobe   recall@10  scanned   recall@10  scanned")
    for nprobe in (1, 2, 4, 8, 16):
        one = measure(stock.search, stock, queries, truth, nprobe)
        two = measure(
            lambda q, k: fg.search(soft, q, k), soft, queries, truth, nprobe
        )
        print(f"  {nprobe:6}   {one[0]:9.3f}  {one[1]:7.0f}", end="")
        print(f"   {two[0]:9.3f}  {two[1]:7.0f}")


if __name__ == "__main__":
    main()
