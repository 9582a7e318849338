"""Mixtures under the indexes of the faiss package.

Everything here is Python over the public interface of whatever ``import faiss``
gives (faiss-cpu, faiss-gpu, Debian's python3-faiss). This package and faiss
each bring their own compiled code; arrays travel between them, C++ objects
never do, since the two may be built from different versions.
"""

import time

import faiss
import numpy as np

from ._estimator import FlashGMM
from ._rows import as_float32

#: Rows that are assigned and added at once.
_CHUNK = 1 << 16


def train_ivf(
    index,
    x,
    *,
    variance_model="tied",
    weight_model="uniform",
    niter=25,
    nredo=1,
    init_params="lloyd",
    max_points_per_centroid=256,
    seed=1234,
    device="cpu",
    verbose=False,
    callback=None,
):
    """Train an IVF index with a mixture as its coarse quantizer.

    Parameters
    ----------
    index : faiss.IndexIVF, or an IndexPreTransform, IndexIDMap or IndexRefine
        over one; must hold no vectors.
    x : array of shape (n, d)
    variance_model, weight_model, init_params, device, verbose, callback
        As for ``FlashGMM``. The defaults, one variance and equal weights, stray
        least from k-means where it is better.
    niter, nredo, seed, max_points_per_centroid
        As for ``faiss.Kmeans``.

    Returns
    -------
    FlashGMM
        The mixture; its means are the centroids. ``add_multi`` takes it.
    """
    if index.ntotal != 0:
        raise ValueError(
            f"the index holds {index.ntotal} vectors: reset() it before training"
        )
    ivf = _ivf_of(index)
    x = as_float32(x)
    if x.shape[1] != index.d:
        raise ValueError(
            f"x has {x.shape[1]} columns, the index is of dimension {index.d}"
        )
    rows = _through_transforms(index, x, train=True)
    gmm = FlashGMM(
        ivf.nlist,
        variance_model=variance_model,
        weight_model=weight_model,
        init_params=init_params,
        n_init=nredo,
        max_iter=niter,
        tol=0,
        random_state=seed,
        device=device,
        verbose=verbose,
        callback=callback,
    )
    gmm._fit_centroids(
        _sample(rows, ivf.nlist * max_points_per_centroid, seed),
        spherical=ivf.metric_type == faiss.METRIC_INNER_PRODUCT
        or ivf.cp.spherical,
    )
    quantizer = faiss.downcast_index(ivf.quantizer)
    quantizer.reset()
    if not quantizer.is_trained:
        quantizer.train(gmm.means_)
    quantizer.add(gmm.means_)
    # A quantizer that holds nlist vectors is trained: what is left is the codec.
    index.train(x)
    return gmm


def add_multi(
    index,
    x,
    ids=None,
    *,
    mixture=None,
    policy="posterior",
    max_inflation=None,
    tau=None,
    distance_ratio=None,
    soar_lambda=1.0,
):
    """Add vectors, those near a border between two lists to both.

    Search with ``faiss_flashgmm.search``: plain ``index.search`` returns an id
    once for each of its copies. ``index.ntotal`` counts vectors.

    Parameters
    ----------
    index : as for ``train_ivf``; trained
    x : array of shape (n, d)
    ids : int64 array of shape (n,), default=None
        Different from each other; None continues after ``index.ntotal``.
    mixture : FlashGMM, default=None
        Output of ``train_ivf``; the policy "posterior" needs it.
    policy : {"posterior", "nearest", "soar"}, default="posterior"
        Which list is the second one: the component of largest responsibility,
        the next centroid, or the one whose residual is least along the first
        (ScaNN's SOAR).
    max_inflation : float, default=None
        Stored entries a vector, at most: the best-scoring rows are copied.
    tau : float, default=None
        For "posterior": least responsibility of a copy; None: 1 / nlist.
    distance_ratio : float, default=None
        For "nearest": largest ratio of the distances to the two centroids.
    soar_lambda : float, default=1.0

    Returns
    -------
    float
        Stored entries a vector, of the vectors added.
    """
    ivf = _ivf_of(index)
    if not index.is_trained:
        raise ValueError("the index is not trained: call train_ivf first")
    if "FastScan" in type(ivf).__name__:
        raise NotImplementedError(
            f"{type(ivf).__name__} takes one list a vector in Python: build an "
            "IndexIVFPQ, and convert it with faiss.IndexIVFPQFastScan(index)"
        )
    if max_inflation is not None and not 1 <= max_inflation <= 2:
        raise ValueError(f"max_inflation = {max_inflation} is not in [1, 2]")
    x = as_float32(x)
    if x.shape[1] != index.d:
        raise ValueError(
            f"x has {x.shape[1]} columns, the index is of dimension {index.d}"
        )
    n = x.shape[0]
    if ids is None:
        ids = np.arange(index.ntotal, index.ntotal + n, dtype=np.int64)
    else:
        ids = np.ascontiguousarray(ids, dtype=np.int64)
        if ids.shape != (n,):
            raise ValueError(f"ids of shape {ids.shape} for {n} vectors")
        if np.unique(ids).size != n:
            raise ValueError("ids repeat")
    rows = _through_transforms(index, x)
    primary = np.empty(n, dtype=np.int64)
    second = np.empty(n, dtype=np.int64)
    score = np.empty(n, dtype=np.float32)  # lower is copied first
    choose = _policy(
        policy, ivf, mixture, tau, distance_ratio, soar_lambda
    )
    for begin in range(0, n, _CHUNK):
        part = slice(begin, begin + _CHUNK)
        primary[part], second[part], score[part] = choose(rows[part])
    copied = np.flatnonzero(second >= 0)
    if max_inflation is not None:
        most = int((max_inflation - 1) * n + 1e-6)
        if copied.size > most:
            best = np.argsort(score[copied], kind="stable")[:most]
            copied = np.sort(copied[best])
    total = ivf.ntotal
    _add_core(ivf, rows, ids, primary)
    _add_core(ivf, rows[copied], ids[copied], second[copied])
    ivf.ntotal = total + n
    for outer in _wrappers(index):
        outer.ntotal = ivf.ntotal
    return 1 + copied.size / max(n, 1)


def search(index, q, k, *, nprobe=None, params=None, copies=2):
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

    Returns
    -------
    distances : float32 array of shape (nq, k)
    ids : int64 array of shape (nq, k)
        No id twice in a row; -1 where there are no more.
    """
    if k < 1:
        raise ValueError(f"k = {k} must be at least 1")
    if nprobe is not None:
        _ivf_of(index).nprobe = int(nprobe)
    arguments = {} if params is None else {"params": params}
    distances, ids = index.search(
        as_float32(q), copies * (k - 1) + 1, **arguments
    )
    return _unique(distances, ids, k)


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
        Fit on a CUDA device; True and any number of GPUs stand for device 0.
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
    """

    def __init__(
        self,
        d,
        k,
        *,
        niter=25,
        nredo=1,
        verbose=False,
        spherical=False,
        seed=1234,
        gpu=False,
        max_points_per_centroid=256,
        min_points_per_centroid=39,
        variance_model="tied",
        weight_model="uniform",
        init_params="lloyd",
    ):
        self.d = d
        self.k = k
        self.niter = niter
        self.nredo = nredo
        self.verbose = verbose
        self.spherical = spherical
        self.seed = seed
        self.gpu = gpu
        self.max_points_per_centroid = max_points_per_centroid
        self.min_points_per_centroid = min_points_per_centroid
        self.variance_model = variance_model
        self.weight_model = weight_model
        self.init_params = init_params
        self.centroids = None
        self.index = None
        self.obj = None
        self.iteration_stats = None
        self.mixture = None
        self.train_time = 0.0

    def train(self, x, weights=None, init_centroids=None):
        """Fit. Returns the last objective, as ``faiss.Kmeans`` does."""
        begin = time.time()
        x = as_float32(x)
        if x.shape[1] != self.d:
            raise ValueError(f"x has {x.shape[1]} columns, d is {self.d}")
        most = self.k * self.max_points_per_centroid
        if weights is not None:
            weights = np.ascontiguousarray(weights, dtype=np.float32)
            if weights.shape != (x.shape[0],):
                raise ValueError(
                    f"weights of shape {weights.shape} for {x.shape[0]} rows"
                )
            if x.shape[0] > most:
                chosen = _sample_indices(x.shape[0], most, self.seed)
                x, weights = x[chosen], weights[chosen]
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
            device="cuda" if self.gpu else "cpu",
            verbose=self.verbose,
        )
        gmm._fit_centroids(
            _sample(x, most, self.seed), weights, spherical=self.spherical
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
        return self.obj[-1] if self.obj.size else 0.0

    def assign(self, x):
        """Distance to, and number of, the nearest centroid of each row."""
        if self.index is None:
            raise ValueError("should train before assigning")
        distances, ids = self.index.search(as_float32(x), 1)
        return distances.ravel(), ids.ravel()


def _ivf_of(index):
    """The IVF index inside, with its own type."""
    ivf = faiss.try_extract_index_ivf(index)
    if ivf is None:
        raise TypeError(f"there is no IVF index in a {type(index).__name__}")
    return faiss.downcast_index(ivf)


def _wrappers(index):
    """The indexes around the IVF index, the outermost first."""
    index = faiss.downcast_index(index)
    while not isinstance(index, faiss.IndexIVF):
        if not isinstance(index, faiss.IndexPreTransform):
            raise NotImplementedError(
                f"a {type(index).__name__} keeps vectors or ids of its own: add "
                "to the index inside it"
            )
        yield index
        index = faiss.downcast_index(index.index)


def _through_transforms(index, x, train=False):
    """Rows as they reach the IVF index; trains the transforms on the way."""
    index = faiss.downcast_index(index)
    while not isinstance(index, faiss.IndexIVF):
        if isinstance(index, faiss.IndexPreTransform):
            for i in range(index.chain.size()):
                transform = faiss.downcast_VectorTransform(index.chain.at(i))
                if train and not transform.is_trained:
                    transform.train(x)
                x = transform.apply(x)
            index = index.index
        elif hasattr(index, "base_index"):
            index = index.base_index
        else:
            index = index.index
        index = faiss.downcast_index(index)
    return x


def _sample_indices(n, most, seed):
    if n <= most:
        return slice(None)
    random = np.random.default_rng(seed)
    return np.sort(random.choice(n, size=most, replace=False))


def _sample(x, most, seed):
    chosen = _sample_indices(x.shape[0], most, seed)
    return x if isinstance(chosen, slice) else x[chosen]


def _add_core(ivf, rows, ids, lists):
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


def _policy(name, ivf, mixture, tau, distance_ratio, soar_lambda):
    """rows -> (primary list, second list or -1, score: lower is better)."""
    quantizer = faiss.downcast_index(ivf.quantizer)
    if name == "posterior":
        if mixture is None:
            raise ValueError("policy 'posterior' needs mixture=train_ivf(...)")
        if mixture.means_.shape != (ivf.nlist, ivf.d):
            raise ValueError(
                f"a mixture of shape {mixture.means_.shape} for {ivf.nlist} "
                f"lists of dimension {ivf.d}"
            )
        bound = 1 / ivf.nlist if tau is None else tau

        def choose(rows):
            primary = quantizer.search(rows, 1)[1][:, 0]
            components, shares = mixture.responsibilities(
                rows, min(2, ivf.nlist)
            )
            at = np.argmax(components != primary[:, None], axis=1)[:, None]
            second = np.take_along_axis(components, at, 1)[:, 0]
            share = np.take_along_axis(shares, at, 1)[:, 0]
            second[(share <= bound) | (second == primary)] = -1
            return primary, second, -share

    elif name == "nearest":
        if distance_ratio is not None and distance_ratio < 1:
            raise ValueError(f"distance_ratio = {distance_ratio} is under 1")

        def choose(rows):
            distances, lists = quantizer.search(rows, 2)
            distances = np.sqrt(np.maximum(distances, 0))
            if ivf.metric_type == faiss.METRIC_INNER_PRODUCT:
                centroids = quantizer.reconstruct_batch(lists.ravel())
                distances = np.linalg.norm(
                    rows[:, None] - centroids.reshape(*lists.shape, -1), axis=2
                )
            first = np.maximum(distances[:, 0], np.finfo(np.float32).tiny)
            ratio = distances[:, 1] / first
            second = lists[:, 1].copy()
            if distance_ratio is not None:
                second[ratio > distance_ratio] = -1
            return lists[:, 0], second, ratio

    elif name == "soar":
        width = min(16, ivf.nlist)

        def choose(rows):
            lists = quantizer.search(rows, width)[1]
            centroids = quantizer.reconstruct_batch(
                np.maximum(lists, 0).ravel()
            ).reshape(*lists.shape, -1)
            residual = rows[:, None] - centroids
            squared = np.einsum("nld,nld->nl", residual, residual)
            along = np.einsum("nld,nd->nl", residual, residual[:, 0])
            first = np.maximum(squared[:, :1], np.finfo(np.float32).tiny)
            loss = squared + soar_lambda * along**2 / first
            loss[:, 0] = np.inf
            loss[lists < 0] = np.inf
            at = np.argmin(loss, axis=1)[:, None]
            second = np.take_along_axis(lists, at, 1)[:, 0]
            best = np.take_along_axis(loss, at, 1)[:, 0]
            second = np.where(np.isfinite(best), second, -1)
            return lists[:, 0], second, best / first[:, 0]

    else:
        raise ValueError(
            f"policy {name!r} is none of 'posterior', 'nearest', 'soar'"
        )
    return choose


def _unique(distances, ids, k):
    """The first k different ids of each row, -1 where there are no more."""
    order = np.argsort(ids, axis=1, kind="stable")
    in_order = np.take_along_axis(ids, order, 1)
    again = np.zeros(ids.shape, dtype=bool)
    again[:, 1:] = in_order[:, 1:] == in_order[:, :-1]
    repeat = np.empty_like(again)
    np.put_along_axis(repeat, order, again, 1)
    kept = np.argsort(repeat, axis=1, kind="stable")[:, :k]
    ids = np.take_along_axis(ids, kept, 1)
    distances = np.take_along_axis(distances, kept, 1)
    missing = np.take_along_axis(repeat, kept, 1) | (ids < 0)
    if missing.any():
        # As FAISS fills up: the worst distance of the order of the row.
        ascending = np.any(distances[:, :1] <= distances[:, -1:], axis=None)
        limit = np.finfo(np.float32).max
        distances[missing] = limit if ascending else -limit
        ids[missing] = -1
    return distances, ids
