"""Arrays, files and streams as rows of float32."""

import os

import numpy as np

from . import _core


class ArrayRows:
    """Rows of anything with a shape and slices, converted a chunk at a time.

    Memory-mapped arrays and arrays of other types are never converted as a
    whole.
    """

    def __init__(self, array):
        self._array = array
        self.shape = tuple(int(size) for size in array.shape)

    def read(self, begin, count):
        return np.ascontiguousarray(
            self._array[begin : begin + count], dtype=np.float32
        )


def open_vectors(path):
    """Rows of a file of vectors: fvecs, bvecs, fbin, f16bin, u8bin, i8bin, npy,
    or ``FILE.hdf5:DATASET``.

    Parameters
    ----------
    path : str or os.PathLike

    Returns
    -------
    rows : object with ``shape`` and ``read(begin, count)``
        ``read`` returns a float32 array of shape (count, d). Accepted by
        ``FlashGMM.fit`` and ``train_ivf``, which read it in chunks.
    """
    return _core.File(os.fspath(path))


def as_source(x):
    """What the solver reads rows from, without a copy where that is possible."""
    if isinstance(x, (str, os.PathLike)):
        return open_vectors(x)
    if hasattr(x, "read") and hasattr(x, "shape"):
        return x
    x = as_array(x)
    if x.dtype == np.float32 and x.flags.c_contiguous:
        return x
    return ArrayRows(x)


def as_array(x):
    """A two-dimensional array of real numbers.

    Raises
    ------
    TypeError
        If ``x`` is not numeric.
    ValueError
        If ``x`` is not two-dimensional.
    """
    if hasattr(x, "toarray"):
        raise TypeError(
            "sparse input is not supported: pass a dense array (X.toarray())"
        )
    if not isinstance(x, np.ndarray) and hasattr(x, "__dlpack__"):
        x = np.from_dlpack(x)
    x = np.asarray(x)
    if x.dtype == object:
        try:
            x = x.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise TypeError(f"rows are not numbers: {error}") from None
    if x.dtype.kind == "c":
        raise ValueError("Complex data not supported")
    if x.dtype.kind not in "fiub":
        raise TypeError(f"rows of dtype {x.dtype} are not real numbers")
    if x.ndim != 2:
        raise ValueError(
            f"Expected 2D array, got {x.ndim}D array instead. "
            "Reshape your data: one row a sample."
        )
    return x


def as_float32(x):
    """The rows as one float32 array in C order."""
    if hasattr(x, "read") and hasattr(x, "shape"):
        return np.ascontiguousarray(x.read(0, x.shape[0]), dtype=np.float32)
    return np.ascontiguousarray(as_array(x), dtype=np.float32)
