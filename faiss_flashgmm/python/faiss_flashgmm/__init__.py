"""Gaussian mixtures as coarse quantizers of FAISS indexes.

``FlashGMM`` is an estimator in the manner of scikit-learn that never stores
the n x k responsibilities. ``train_ivf``, ``add_multi``, ``search`` and
``Kmeans`` work on the indexes of whatever ``import faiss`` gives; they are
loaded on first use, and nothing else needs faiss.
"""

from ._core import __version__
from ._estimator import FlashGMM, NotFittedError
from ._rows import open_vectors

__all__ = [
    "FlashGMM",
    "Kmeans",
    "NotFittedError",
    "add_multi",
    "cuda_available",
    "open_vectors",
    "search",
    "train_ivf",
    "__version__",
]

_FAISS_NAMES = ("Kmeans", "add_multi", "search", "train_ivf")


def cuda_available():
    """Whether fits can run on a GPU: ``device="cuda"``."""
    from . import _core

    return _core.why_no_cuda() == ""


def __getattr__(name):
    if name in _FAISS_NAMES:
        from . import _faiss

        return getattr(_faiss, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
