"""IVF indexes over a Gaussian mixture, border vectors in two lists."""

import faiss
import faiss_flashgmm as fg
import numpy as np

from ..base.module import BaseANN


class FlashGMM(BaseANN):
    """IVF with flat codes.

    Parameters
    ----------
    metric : {"euclidean", "angular"}
    nlist : int
    policy : str
        Of ``faiss_flashgmm.add_multi``; "single": one list a vector.
    max_inflation : float
        Stored entries a vector, at most.
    """

    def __init__(self, metric, nlist, policy, max_inflation):
        if metric not in ("euclidean", "angular"):
            raise NotImplementedError(f"no metric {metric}")
        self._metric = metric
        self._nlist = nlist
        self._policy = policy
        self._max_inflation = max_inflation
        self._entries = 1.0
        self._search = ""

    def fit(self, X):
        x = self._rows(X)
        # The quantizer and the rows belong to this object: faiss points there.
        self._ivf = faiss.index_factory(
            x.shape[1], f"IVF{self._nlist},{self.codec_for(x.shape[1])}"
        )
        mixture = fg.train_ivf(self._ivf, x)
        if self._policy == "single":
            self._ivf.add(x)
        else:
            self._entries = fg.add_multi(
                self._ivf,
                x,
                mixture=mixture,
                policy=self._policy,
                max_inflation=self._max_inflation,
            )
        self._copies = 1 if self._policy == "single" else 2
        self._index = self._ivf

    def codec_for(self, d):
        return "Flat"

    def set_query_arguments(self, nprobe):
        faiss.cvar.indexIVF_stats.reset()
        self._ivf.nprobe = nprobe
        self._search = f"nprobe={nprobe}"

    def query(self, v, n):
        return self._found(v[None], n)[0]

    def batch_query(self, X, n):
        self.res = self._found(X, n)

    def _found(self, X, n):
        _, ids = fg.search(
            self._index, self._rows(X), n, copies=self._copies
        )
        return [row[row >= 0] for row in ids]

    def get_additional(self):
        stats = faiss.cvar.indexIVF_stats
        return {
            "dist_comps": stats.ndis + stats.nq * self._nlist,
            "entries_per_vector": self._entries,
        }

    def _rows(self, X):
        x = np.array(X, dtype=np.float32, order="C")
        if self._metric == "angular":
            faiss.normalize_L2(x)
        return x

    def __str__(self):
        return (
            f"{type(self).__name__}(nlist={self._nlist}, policy={self._policy}, "
            f"entries={self._entries:.2f}, {self._search})"
        )


class FlashGMMPQFastScan(FlashGMM):
    """IVF with 4-bit PQ codes scanned by registers, and exact re-ranking."""

    def codec_for(self, d):
        return f"PQ{d // 2}x4"

    def fit(self, X):
        super().fit(X)
        self._codes = self._ivf
        self._ivf = faiss.IndexIVFPQFastScan(self._codes)
        self._x = self._rows(X)
        self._refined = faiss.IndexRefineFlat(
            self._ivf, faiss.swig_ptr(self._x)
        )

    def set_query_arguments(self, nprobe, k_reorder):
        super().set_query_arguments(nprobe)
        self._search += f", k_reorder={k_reorder}"
        self._index = self._refined if k_reorder else self._ivf
        self._refined.k_factor = max(k_reorder, 1)
