"""Mixtures under the indexes of the faiss package.

Everything here is Python over the public interface of whatever ``import faiss``
gives (faiss-cpu, faiss-gpu, Debian's python3-faiss). This package and faiss
each bring their own compiled code; arrays travel between them, C++ objects
never do, since the two may be built from different versions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import faiss  # type: ignore[import-untyped, unused-ignore]
import numpy as np
import numpy.typing as npt

from . import _core
from ._estimator import FlashGMM, State
from ._index import assign_options
from ._rows import as_float32, as_source, device_name, on_device, plain_int64

#: The most results that GPU indexes of a FAISS with cuVS return in order.
_CUVS_SORTS = 256


def train_ivf(
    index: Any,
    x: Any,
    *,
    variance_model: str = "tied",
    weight_model: str = "uniform",
    niter: int | None = None,
    nredo: int | None = None,
    init_params: str = "lloyd",
    max_points_per_centroid: int | None = None,
    seed: int | None = None,
    device: Any = "cpu",
    verbose: bool = False,
    callback: Callable[[State], object] | None = None,
) -> FlashGMM:
    """Train an IVF index with a mixture as its coarse quantizer.

    Parameters
    ----------
    index : faiss.IndexIVF or GpuIndexIVF, or an IndexPreTransform, IndexIDMap
        or IndexRefine over one; must hold no vectors.
    x : array of shape (n, d)
        As for ``FlashGMM.fit``. The codec is trained on a copy in host memory.
    variance_model, weight_model, init_params, device, verbose, callback
        As for ``FlashGMM``. The defaults, one variance and equal weights, stray
        least from k-means where it is better.
    niter, nredo, seed, max_points_per_centroid : int, default=None
        As for ``faiss.Kmeans``; None: what the ``cp`` of the IVF index says (of
        FAISS: 10, 1, 1234 and 256).

    Returns
    -------
    FlashGMM
        The mixture; its means are the centroids. ``add_multi`` takes it.

    Examples
    --------
    >>> import faiss
    >>> import numpy as np
    >>> import faiss_flashgmm as fg
    >>> x = np.random.default_rng(0).random((2000, 8), dtype=np.float32)
    >>> index = faiss.index_factory(8, "IVF16,Flat")
    >>> mixture = fg.train_ivf(index, x)
    >>> index.is_trained, mixture.means_.shape
    (True, (16, 8))
    """
    if index.ntotal != 0:
        raise ValueError(
            f"the index holds {index.ntotal} vectors: reset() it before training"
        )
    ivf = _ivf_of(index)
    device = device_name(device)
    rows = as_source(x)
    _check_columns(rows, index)
    x = as_float32(rows, device)
    below = _through_transforms(index, x, train=True)
    if below is not x or not on_device(rows):
        rows = below
    gmm = FlashGMM(
        ivf.nlist,
        variance_model=variance_model,
        weight_model=weight_model,
        init_params=init_params,
        n_init=ivf.cp.nredo if nredo is None else nredo,
        max_iter=ivf.cp.niter if niter is None else niter,
        tol=0,
        random_state=ivf.cp.seed if seed is None else seed,
        device=device,
        verbose=verbose,
        callback=callback,
    )
    gmm._fit_centroids(
        rows,
        spherical=ivf.metric_type == faiss.METRIC_INNER_PRODUCT
        or ivf.cp.spherical,
        max_points_per_centroid=ivf.cp.max_points_per_centroid
        if max_points_per_centroid is None
        else max_points_per_centroid,
    )
    if _is_on_gpu(ivf):
        on_cpu = _on_cpu(ivf)
        _set_centroids(on_cpu, gmm.means_)
        on_cpu.train(below)
        ivf.copyFrom(on_cpu)
    else:
        _set_centroids(ivf, gmm.means_)
    # What is trained already stays: the transforms and the centroids.
    if index is not ivf or not _is_on_gpu(ivf):
        index.train(x)
    return gmm


def add_multi(
    index: Any,
    x: Any,
    ids: Any = None,
    *,
    mixture: FlashGMM | None = None,
    policy: str = "posterior",
    max_inflation: float | None = None,
    learn_from: Any = None,
    queries: Any = None,
    **options: float,
) -> float:
    """Add vectors, those near a border between two lists to both.

    Search with ``faiss_flashgmm.search``: plain ``index.search`` returns an id
    once for each of its copies. ``index.ntotal`` counts vectors.

    Parameters
    ----------
    index : as for ``train_ivf``; trained, on the CPU
    x : array of shape (n, d)
    ids : int64 array of shape (n,), default=None
        Different from each other; None continues after ``index.ntotal``.
    mixture : FlashGMM, default=None
        Output of ``train_ivf``; the policy "posterior" needs it.
    policy : {"posterior", "nearest", "air", "soar", "demand"}
        Which list is the second one: the component of largest responsibility,
        the next centroid, one whose residual points away from the first
        (RAIRS) or lies at right angles to it (ScaNN's SOAR), or the one where
        the queries that want the vector look first. docs/assignment.md compares
        them. The code is that of the C++ class ``MultiAssign``.
    max_inflation : float, default=None
        Stored entries a vector, at most, of those added here: the best-scoring
        copies are kept. "demand" stores none that costs more than it saves.
    learn_from : array of shape (any, d), default=None
        For "demand": rows that stand for all that the index is going to hold;
        None: ``x``.
    queries : array of shape (any, d), default=None
        For "demand": a sample of real queries, to learn from besides the rows.
    **options
        Other fields of ``MultiAssign``: tau, distance_ratio, rng_rule,
        air_lambda, air_relaxed, soar_lambda, candidates, max_entries (then
        search with as many ``copies``), demand_neighbors, ...

    Returns
    -------
    float
        Stored entries a vector, of the vectors added.

    Examples
    --------
    >>> import faiss
    >>> import numpy as np
    >>> import faiss_flashgmm as fg
    >>> x = np.random.default_rng(0).random((2000, 8), dtype=np.float32)
    >>> index = faiss.index_factory(8, "IVF16,Flat")
    >>> mixture = fg.train_ivf(index, x)
    >>> fg.add_multi(index, x, mixture=mixture, max_inflation=1.25)
    1.25
    >>> index.ntotal
    2000
    """
    ivf = _ivf_of(index)
    if not index.is_trained:
        raise ValueError("the index is not trained: call train_ivf first")
    if _is_on_gpu(ivf):
        raise NotImplementedError(
            f"a {type(ivf).__name__} chooses the lists itself: add to the index "
            "on the CPU, and copy it by faiss.index_cpu_to_gpu"
        )
    if "FastScan" in type(ivf).__name__:
        raise NotImplementedError(
            f"{type(ivf).__name__} takes one list a vector here: use "
            "faiss_flashgmm.Index, or build an IndexIVFPQ and convert it with "
            "faiss.IndexIVFPQFastScan(index)"
        )
    settings = assign_options(policy, max_inflation, options)
    x = as_float32(x)
    n = x.shape[0]
    if ids is None:
        ids = np.arange(index.ntotal, index.ntotal + n, dtype=np.int64)
    else:
        ids = np.ascontiguousarray(ids, dtype=np.int64)
        if ids.shape != (n,):
            raise ValueError(f"ids of shape {ids.shape} for {n} vectors")
        if np.unique(ids).size != n:
            raise ValueError("ids repeat")
    if policy == "posterior" and mixture is None:
        raise ValueError("policy 'posterior' needs mixture=train_ivf(...)")
    if mixture is not None and mixture.means_.shape != (ivf.nlist, ivf.d):
        raise ValueError(
            f"a mixture of shape {mixture.means_.shape} for {ivf.nlist} lists "
            f"of dimension {ivf.d}"
        )

    rows = rows_below(index, x)
    quantizer = faiss.downcast_index(ivf.quantizer)
    primary = quantizer.search(rows, 1)[1].ravel()
    chosen = _core.choose_lists(
        settings,
        quantizer.reconstruct_n(0, ivf.nlist),
        ivf.metric_type == faiss.METRIC_INNER_PRODUCT,
        [] if mixture is None else mixture.variances_.tolist(),
        [] if mixture is None else mixture.weights_.tolist(),
        rows,
        primary,
        rows if learn_from is None else rows_below(index, learn_from),
        None if queries is None else rows_below(index, queries),
    )
    extra = plain_int64(chosen)
    total = ivf.ntotal
    _add_core(ivf, rows, ids, primary)
    for lists in np.ascontiguousarray(extra.T):
        copied = np.flatnonzero(lists >= 0)
        _add_core(ivf, rows[copied], ids[copied], lists[copied])
    ivf.ntotal = total + n
    for outer in _wrappers(index):
        outer.ntotal = ivf.ntotal
    return float(1 + np.count_nonzero(extra >= 0) / max(n, 1))


def search(
    index: Any,
    q: Any,
    k: int,
    *,
    nprobe: int | None = None,
    params: Any = None,
    copies: int = 2,
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Search an index that holds vectors up to ``copies`` times.

    Parameters
    ----------
    index : any faiss index
    q : array of shape (nq, d)
    k : int
    nprobe : int, default=None
        Lists to probe; None leaves it to the index.
    params : faiss.SearchParameters, default=None
        As for ``index.search``.
    copies : int, default=2
        The ``max_entries`` of ``add_multi``.

    Returns
    -------
    distances : float32 array of shape (nq, k)
    ids : int64 array of shape (nq, k)
        No id twice in a row; -1 where there are no more.

    Examples
    --------
    >>> import faiss
    >>> import numpy as np
    >>> import faiss_flashgmm as fg
    >>> x = np.random.default_rng(0).random((2000, 8), dtype=np.float32)
    >>> index = faiss.index_factory(8, "IVF16,Flat")
    >>> mixture = fg.train_ivf(index, x)
    >>> inflation = fg.add_multi(index, x, mixture=mixture)
    >>> distances, ids = fg.search(index, x[:3], k=5, nprobe=4)
    >>> ids[:, 0].tolist(), ids.shape
    ([0, 1, 2], (3, 5))
    """
    if k < 1:
        raise ValueError(f"k = {k} must be at least 1")
    if nprobe is not None:
        _ivf_of(index).nprobe = int(nprobe)
    arguments = {} if params is None else {"params": params}
    distances, ids = index.search(
        as_float32(q), copies * (k - 1) + 1, **arguments
    )
    similarity = index.metric_type == faiss.METRIC_INNER_PRODUCT
    if distances.shape[1] > _CUVS_SORTS:
        order = np.argsort(
            -distances if similarity else distances, axis=1, kind="stable"
        )
        distances = np.take_along_axis(distances, order, 1)
        ids = np.take_along_axis(ids, order, 1)
    # As FAISS fills up.
    no_result = float(np.finfo(np.float32).max)
    if similarity:
        no_result = -no_result
    distances, ids = _core.unique(distances, ids, k, no_result)
    return distances, plain_int64(ids)


class Kmeans:
    """``faiss.Kmeans`` with a mixture in its place.

    Parameters
    ----------
    d, k : int
    niter : int, default=25
    nredo : int, default=1
    verbose : bool, default=False
    spherical : bool, default=False
    seed : int, default=1234
    gpu : bool or int, default=False
        Fit on that many CUDA devices; True stands for one.
    device : default=None
        As for ``FlashGMM``, in place of ``gpu``.
    max_points_per_centroid, min_points_per_centroid : int
    variance_model, weight_model : str
        As for ``train_ivf``.

    Attributes
    ----------
    centroids : float32 array of shape (k, d)
    index : faiss.IndexFlat over them
    obj : float array, the L2 objective of each iteration of the best run
    iteration_stats : list of dict
    mixture : FlashGMM

    Examples
    --------
    >>> import numpy as np
    >>> import faiss_flashgmm as fg
    >>> x = np.random.default_rng(0).random((2000, 8), dtype=np.float32)
    >>> kmeans = fg.Kmeans(8, 16, niter=5)
    >>> objective = kmeans.train(x)
    >>> kmeans.centroids.shape, len(kmeans.obj)
    ((16, 8), 5)
    >>> distances, nearest = kmeans.assign(x[:3])
    """

    def __init__(
        self,
        d: int,
        k: int,
        *,
        niter: int = 25,
        nredo: int = 1,
        verbose: bool = False,
        spherical: bool = False,
        seed: int = 1234,
        gpu: bool | int = False,
        device: Any = None,
        max_points_per_centroid: int = 256,
        min_points_per_centroid: int = 39,
        variance_model: str = "tied",
        weight_model: str = "uniform",
        init_params: str = "lloyd",
    ) -> None:
        self.d = d
        self.k = k
        self.niter = niter
        self.nredo = nredo
        self.verbose = verbose
        self.spherical = spherical
        self.seed = seed
        if device is None:
            device = list(range(int(gpu))) if gpu else "cpu"
        self.gpu = gpu
        self.device = device_name(device)
        self.max_points_per_centroid = max_points_per_centroid
        self.min_points_per_centroid = min_points_per_centroid
        self.variance_model = variance_model
        self.weight_model = weight_model
        self.init_params = init_params
        self.centroids: npt.NDArray[np.float32] | None = None
        self.index: Any = None
        self.obj: npt.NDArray[np.float64] | None = None
        self.iteration_stats: list[dict[str, Any]] | None = None
        self.mixture: FlashGMM | None = None
        self.train_time = 0.0

    def train(
        self, x: Any, weights: Any = None, init_centroids: Any = None
    ) -> float:
        """Fit. Returns the last objective, as ``faiss.Kmeans`` does."""
        begin = time.time()
        rows = as_source(x)
        if rows.shape[1] != self.d:
            raise ValueError(f"x has {rows.shape[1]} columns, d is {self.d}")
        gmm = FlashGMM(
            self.k,
            variance_model=self.variance_model,
            weight_model=self.weight_model,
            init_params=self.init_params,
            n_init=self.nredo,
            max_iter=self.niter,
            tol=0,
            means_init=init_centroids,
            random_state=self.seed,
            device=self.device,
            verbose=self.verbose,
        )
        gmm._fit_centroids(
            rows,
            weights,
            spherical=self.spherical,
            max_points_per_centroid=self.max_points_per_centroid,
        )
        self.mixture = gmm
        self.centroids = gmm.means_
        self.iteration_stats = gmm.history_
        self.obj = np.array([step["objective"] for step in gmm.history_])
        metric = (
            faiss.METRIC_INNER_PRODUCT if self.spherical else faiss.METRIC_L2
        )
        self.index = faiss.IndexFlat(self.d, metric)
        self.index.add(self.centroids)
        self.train_time = time.time() - begin
        return float(self.obj[-1]) if self.obj.size else 0.0

    def assign(
        self, x: Any
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Distance to, and number of, the nearest centroid of each row."""
        if self.index is None:
            raise ValueError("should train before assigning")
        distances, ids = self.index.search(as_float32(x, self.device), 1)
        return distances.ravel(), ids.ravel()


#: Absent from builds of FAISS without GPU.
_GPU_IVF = getattr(faiss, "GpuIndexIVF", ())


def _is_on_gpu(index: Any) -> bool:
    return isinstance(index, _GPU_IVF)


def _parts(index: Any) -> Iterator[Any]:
    """The indexes around the IVF index, the outermost first, and that one."""
    outermost = index
    while True:
        index = faiss.downcast_index(index)
        yield index
        if isinstance(index, faiss.IndexIVF) or _is_on_gpu(index):
            return
        if hasattr(index, "base_index"):
            index = index.base_index
        elif hasattr(index, "index"):
            index = index.index
        else:
            raise TypeError(
                f"there is no IVF index in a {type(outermost).__name__}"
            )


def _ivf_of(index: Any) -> Any:
    """The IVF index inside, with its own type."""
    *_, ivf = _parts(index)
    return ivf


def _wrappers(index: Any) -> list[Any]:
    """The indexes around the IVF index, if they keep nothing of their own."""
    *outer, _ = _parts(index)
    for part in outer:
        if not isinstance(part, faiss.IndexPreTransform):
            raise NotImplementedError(
                f"a {type(part).__name__} keeps vectors or ids of its own: add "
                "to the index inside it"
            )
    return outer


def _check_columns(x: Any, index: Any) -> None:
    if x.shape[1] != index.d:
        raise ValueError(
            f"x has {x.shape[1]} columns, the index is of dimension {index.d}"
        )


def _on_cpu(ivf: Any) -> Any:
    """An empty index like one on a GPU. FAISS copies trained ones only, and
    ends the process otherwise."""
    quantizer = faiss.IndexFlat(ivf.d, ivf.metric_type)
    lists = (quantizer, ivf.d, ivf.nlist)
    kind = type(ivf).__name__
    if kind == "GpuIndexIVFFlat":
        index = faiss.IndexIVFFlat(*lists, ivf.metric_type)
    elif kind == "GpuIndexIVFPQ":
        codec = (ivf.getNumSubQuantizers(), ivf.getBitsPerCode())
        index = faiss.IndexIVFPQ(*lists, *codec, ivf.metric_type)
    elif kind == "GpuIndexIVFScalarQuantizer":
        index = faiss.IndexIVFScalarQuantizer(
            *lists, ivf.sq.qtype, ivf.metric_type, ivf.by_residual
        )
    else:
        raise NotImplementedError(
            f"a {kind} does not take centroids: train an index on the CPU, and "
            "copy it by faiss.index_cpu_to_gpu"
        )
    index.nprobe = ivf.nprobe
    return index


def _set_centroids(ivf: Any, means: npt.NDArray[np.float32]) -> None:
    quantizer = faiss.downcast_index(ivf.quantizer)
    quantizer.reset()
    if not quantizer.is_trained:
        quantizer.train(means)
    quantizer.add(means)


def _through_transforms(
    index: Any, x: npt.NDArray[np.float32], train: bool = False
) -> npt.NDArray[np.float32]:
    """Rows as they reach the IVF index; trains the transforms on the way."""
    for part in _parts(index):
        if not isinstance(part, faiss.IndexPreTransform):
            continue
        chain: Any = part.chain
        for i in range(chain.size()):
            transform = faiss.downcast_VectorTransform(chain.at(i))
            if train and not transform.is_trained:
                transform.train(x)
            x = transform.apply(x)
    return x


def rows_below(index: Any, x: Any) -> npt.NDArray[np.float32]:
    """Rows as the IVF index inside gets them."""
    x = as_float32(x)
    _check_columns(x, index)
    return np.ascontiguousarray(_through_transforms(index, x))


def _add_core(
    ivf: Any,
    rows: npt.NDArray[np.float32],
    ids: npt.NDArray[np.int64],
    lists: npt.NDArray[np.int64],
) -> None:
    """Encodes rows for the given lists and stores them there."""
    rows = np.ascontiguousarray(rows)
    ids = np.ascontiguousarray(ids)
    lists = np.ascontiguousarray(lists)
    ivf.add_core(
        rows.shape[0],
        faiss.swig_ptr(rows),
        faiss.swig_ptr(ids),
        faiss.swig_ptr(lists),
    )
