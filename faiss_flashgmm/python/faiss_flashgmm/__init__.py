"""Gaussian mixtures as coarse quantizers of FAISS indexes.

``FlashGMM`` is an estimator in the manner of scikit-learn that never stores
the n x k responsibilities. ``train_ivf``, ``add_multi``, ``search`` and
``Kmeans`` work on the indexes of whatever ``import faiss`` gives; they are
loaded on first use, and nothing else needs faiss. ``Index`` is the multi-assign
index of the C++ library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._core import faiss_version
from ._core import version as __version__
from ._estimator import FlashGMM, NotFittedError
from ._index import Index, read_index
from ._rows import open_vectors

if TYPE_CHECKING:
    from ._faiss import Kmeans, add_multi, search, train_ivf

__all__ = [
    "FlashGMM",
    "Index",
    "Kmeans",
    "NotFittedError",
    "add_multi",
    "cuda_available",
    "faiss_version",
    "open_vectors",
    "read_index",
    "search",
    "train_ivf",
    "__version__",
]

_FAISS_NAMES = ("Kmeans", "add_multi", "search", "train_ivf")


def cuda_available() -> bool:
    """Whether fits can run on a GPU: ``device="cuda"``."""
    from . import _core

    return _core.why_no_cuda() == ""


def __getattr__(name: str) -> Any:
    if name in _FAISS_NAMES:
        from . import _faiss

        return getattr(_faiss, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
