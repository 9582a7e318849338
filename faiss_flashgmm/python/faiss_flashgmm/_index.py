"""The multi-assign index of the C++ library, with the FAISS inside it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _core
from ._estimator import FlashGMM
from ._rows import as_float32, plain_int64


class Index:
    """An IVF index that keeps vectors in one or several lists, each found once.

    It is the C++ library's, over a FAISS of its own inside this package: it
    needs no ``faiss`` package, and its files are those of the C++ functions
    ``write_index`` and ``read_index`` and of the program ``flashgmm``. To and
    from the indexes of a ``faiss`` package it goes by bytes (``from_faiss``,
    ``to_faiss``).

    Parameters
    ----------
    d : int
        Dimension.
    description : str
        As for ``faiss.index_factory``, with "_GMM" after the lists for a
        mixture as coarse quantizer and "MA(policy,max_inflation)" for several
        lists a vector (docs/factory.md).
    metric : {"l2", "inner_product"}, default="l2"

    Attributes
    ----------
    d, ntotal, nlist : int
        ``ntotal`` counts vectors.
    nprobe : int
        Lists that a search looks into. May be set.
    is_trained : bool
    entries_per_vector : float
    description : str
        Builds an index like this one.

    Examples
    --------
    >>> import numpy as np
    >>> import faiss_flashgmm as fg
    >>> x = np.random.default_rng(0).random((2000, 8), dtype=np.float32)
    >>> index = fg.Index(8, "IVF16_GMM,Flat,MA(demand,1.5)")
    >>> index.train(x)
    >>> index.add(x)
    >>> index.nprobe = 4
    >>> distances, ids = index.search(x[:3], k=5)
    >>> ids[:, 0].tolist()
    [0, 1, 2]
    >>> round(index.entries_per_vector, 2)
    1.5
    >>> fg.Index.from_bytes(index.to_bytes())
    Index(8, 'IVF16_GMM,Flat,MA(demand,1.5)'), 2000 vectors
    """

    def __init__(self, d: int, description: str, metric: str = "l2") -> None:
        if metric not in ("l2", "inner_product"):
            raise ValueError(
                f"metric {metric!r} is neither 'l2' nor 'inner_product'"
            )
        self._core = _core.Index.from_description(
            d, description, metric == "inner_product"
        )

    @classmethod
    def _of(cls, core: _core.Index) -> Index:
        index = cls.__new__(cls)
        index._core = core
        return index

    # --- what it does ---

    def train(self, x: Any, *, queries: Any = None) -> None:
        """Fit the centroids and train the codec.

        Parameters
        ----------
        x : array of shape (n, d)
        queries : array of shape (any, d), default=None
            For the policy "demand": a sample of real queries, as they reach the
            lists (below a transform: transformed).
        """
        self._core.train(
            as_float32(x), None if queries is None else as_float32(queries)
        )

    def add(self, x: Any, ids: Any = None) -> None:
        """Add vectors.

        Parameters
        ----------
        x : array of shape (n, d)
        ids : int64 array of shape (n,), default=None
            None continues after the largest id.
        """
        if ids is not None:
            ids = np.ascontiguousarray(ids, dtype=np.int64)
        self._core.add(as_float32(x), ids)

    def remove_ids(self, ids: Any) -> int:
        """Remove vectors, with all their copies; returns their number."""
        return self._core.remove_ids(np.ascontiguousarray(ids, np.int64))

    def reset(self) -> None:
        """Remove all vectors."""
        self._core.reset()

    def search(
        self, q: Any, k: int, *, nprobe: int | None = None
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """The k nearest vectors of each query.

        Parameters
        ----------
        q : array of shape (nq, d)
        k : int
        nprobe : int, default=None
            Sets ``self.nprobe`` first.

        Returns
        -------
        distances : float32 array of shape (nq, k)
        ids : int64 array of shape (nq, k)
            No id twice in a row; -1 where there are no more.
        """
        if nprobe is not None:
            self.nprobe = nprobe
        distances, ids = self._core.search(as_float32(q), k)
        return distances, plain_int64(ids)

    # --- files and bytes ---

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write a file, which appears complete or not at all (docs/files.md)."""
        self._core.write(os.fspath(path))

    def to_bytes(self) -> bytes:
        """The bytes of that file."""
        return self._core.to_bytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> Index:
        """The index of ``to_bytes``, or of a file's content."""
        return cls._of(_core.Index.from_bytes(bytes(data)))

    @classmethod
    def from_faiss(
        cls,
        index: Any,
        *,
        mixture: FlashGMM | None = None,
        policy: str = "posterior",
        max_inflation: float | None = None,
        learn_from: Any = None,
        queries: Any = None,
        **options: float,
    ) -> Index:
        """A copy of an index of the ``faiss`` package.

        Parameters
        ----------
        index : faiss.Index on the CPU
            With an IVF index inside; entries with one id (``add_multi``) are
            taken for copies of one vector.
        mixture : FlashGMM, default=None
            Output of ``train_ivf``.
        policy, max_inflation, queries, **options
            For vectors added later, as for ``add_multi``.
        learn_from : array of shape (n, d), default=None
            Training rows; vectors can be added later without them only if the
            policy is not "demand" and ``max_inflation`` is None.

        Raises
        ------
        ValueError
            Also if the FAISS inside this package (``fg.faiss_version``) is too
            old for the type of the index.
        """
        import faiss  # type: ignore[import-untyped, unused-ignore]

        from ._faiss import rows_below

        return cls._of(
            _core.Index.from_stock_bytes(
                faiss.serialize_index(index).tobytes(),
                assign_options(policy, max_inflation, options),
                None if mixture is None else mixture.means_,
                [] if mixture is None else mixture.variances_.tolist(),
                [] if mixture is None else mixture.weights_.tolist(),
                None if learn_from is None else rows_below(index, learn_from),
                None if queries is None else rows_below(index, queries),
            )
        )

    def to_faiss(self, copies: str = "all") -> Any:
        """A copy as an index of the ``faiss`` package.

        Parameters
        ----------
        copies : {"all", "single"}, default="all"
            "all": search it with ``faiss_flashgmm.search``; "single": one entry
            a vector.
        """
        import faiss

        return faiss.deserialize_index(self._core.to_stock_bytes(copies))

    # --- what it is ---

    @property
    def d(self) -> int:
        return self._core.d

    @property
    def ntotal(self) -> int:
        return self._core.ntotal

    @property
    def nlist(self) -> int:
        return self._core.nlist

    @property
    def nprobe(self) -> int:
        return self._core.nprobe

    @nprobe.setter
    def nprobe(self, nprobe: int) -> None:
        self._core.nprobe = nprobe

    @property
    def is_trained(self) -> bool:
        return self._core.is_trained

    @property
    def entries_per_vector(self) -> float:
        return self._core.entries_per_vector

    @property
    def description(self) -> str:
        return self._core.description

    @property
    def mixture(self) -> FlashGMM | None:
        """The mixture whose components are the lists, if there is one."""
        found = self._core.mixture
        if found is None:
            return None
        means, variances, weights = found
        gmm = FlashGMM(means.shape[0])
        gmm.means_, gmm.variances_, gmm.weights_ = means, variances, weights
        gmm.n_features_in_ = means.shape[1]
        return gmm

    def __repr__(self) -> str:
        return f"Index({self.d}, {self.description!r}), {self.ntotal} vectors"

    def __getstate__(self) -> dict[str, Any]:
        return {"bytes": self.to_bytes(), "nprobe": self.nprobe}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._core = _core.Index.from_bytes(state["bytes"])
        self.nprobe = state["nprobe"]


def read_index(path: str | os.PathLike[str]) -> Index:
    """Read a file of ``Index.write``, of the C++ ``write_index``, or of the
    program ``flashgmm``."""
    return Index._of(_core.Index.read(os.fspath(path)))


def assign_options(
    policy: str, max_inflation: float | None, options: Mapping[str, float]
) -> list[str]:
    """Fields of MultiAssign as text; None has its default."""
    fields = {"policy": policy, "max_inflation": max_inflation, **options}
    return [
        f"{name}={value if isinstance(value, str) else repr(float(value))}"
        for name, value in fields.items()
        if value is not None
    ]
