"""IVF indexes over a Gaussian mixture, border vectors in two lists."""

import os

import faiss
import faiss_flashgmm as fg
import numpy as np

from benchmark.datasets import DATASETS
from neurips23.ood.base import BaseOODANN

#: Rows read and added at once.
BLOCK = 500_000


class FlashGMM(BaseOODANN):
    """
    Parameters
    ----------
    metric : {"euclidean", "ip"}
    index_params : dict
        "index": a string of ``faiss.index_factory``, with an IVF part.
        "policy": of ``faiss_flashgmm.add_multi``; "single", the default: one
        list a vector.
        "max_inflation": stored entries a vector, at most; default 1.5.
        "train_rows": trained on so many of the first rows; default 10^6.
    """

    def __init__(self, metric, index_params):
        metrics = {
            "euclidean": faiss.METRIC_L2,
            "ip": faiss.METRIC_INNER_PRODUCT,
        }
        if metric not in metrics:
            raise NotImplementedError(f"no metric {metric}")
        self._metric = metrics[metric]
        self._key = index_params["index"]
        self._policy = index_params.get("policy", "single")
        self._max_inflation = index_params.get("max_inflation", 1.5)
        self._train_rows = index_params.get("train_rows", 1_000_000)
        self._copies = 1 if self._policy == "single" else 2
        self._query_args = {}

    def fit(self, dataset):
        ds = DATASETS[dataset]()
        self._index = faiss.index_factory(ds.d, self._key, self._metric)
        mixture = fg.train_ivf(
            self._index, next(ds.get_dataset_iterator(bs=self._train_rows))
        )
        for rows in ds.get_dataset_iterator(bs=BLOCK):
            if self._policy == "single":
                self._index.add(np.ascontiguousarray(rows, dtype=np.float32))
            else:
                # The limit is kept in each block.
                fg.add_multi(
                    self._index,
                    rows,
                    mixture=mixture,
                    policy=self._policy,
                    max_inflation=self._max_inflation,
                )
        path = self._path(dataset)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        faiss.write_index(self._index, path)

    def load_index(self, dataset):
        path = self._path(dataset)
        if not os.path.exists(path):
            return False
        self._index = faiss.read_index(path)
        return True

    def index_files_to_store(self, dataset):
        path = self._path(dataset)
        return [os.path.dirname(path), os.path.basename(path), [""]]

    def _path(self, dataset):
        name = f"{self._key}_{self._policy}_{self._max_inflation}.index"
        return os.path.join(
            "data", "indices", "ood", "flashgmm", dataset, name
        )

    def set_query_arguments(self, query_args):
        self._query_args = query_args
        faiss.extract_index_ivf(self._index).nprobe = query_args["nprobe"]

    def query(self, X, k):
        _, self.res = fg.search(self._index, X, k, copies=self._copies)

    def get_results(self):
        ids = np.sort(self.res, axis=1)
        assert not np.any((ids[:, 1:] == ids[:, :-1]) & (ids[:, 1:] >= 0)), (
            "an id was found twice"
        )
        return self.res

    def __str__(self):
        return (
            f"flashgmm({self._key}, {self._policy}, {self._max_inflation}, "
            f"{self._query_args})"
        )
