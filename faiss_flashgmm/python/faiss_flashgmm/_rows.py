"""Arrays, files and streams as rows of float32."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _core

#: Devices of DLPack whose memory the CPU can read: its own, and pinned memory.
_HOST_MEMORY = (1, 3, 11)


class ArrayRows:
    """Rows of anything with a shape and slices, converted a chunk at a time.

    Memory-mapped arrays and arrays of other types are never converted as a
    whole.
    """

    def __init__(self, array: Any) -> None:
        self._array = array
        self.shape = tuple(int(size) for size in array.shape)

    def read(self, begin: int, count: int) -> npt.NDArray[np.float32]:
        return np.ascontiguousarray(
            self._array[begin : begin + count], dtype=np.float32
        )


def open_vectors(path: str | os.PathLike[str]) -> _core.File:
    """Rows of a file of vectors: fvecs, bvecs, fbin, f16bin, u8bin, i8bin, npy,
    or ``FILE.hdf5:DATASET``.

    Parameters
    ----------
    path : str or os.PathLike

    Returns
    -------
    rows : object with ``shape`` and ``read(begin, count)``
        ``read`` returns a float32 array of shape (count, d). Accepted by
        ``FlashGMM.fit`` and ``predict``, which read it in chunks. To be used by
        one thread at a time.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> from faiss_flashgmm import open_vectors
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "rows.npy")
    ...     np.save(path, np.eye(3, dtype=np.float32))
    ...     rows = open_vectors(path)
    ...     print(rows.shape, rows.read(1, 1))
    (3, 3) [[0. 1. 0.]]
    """
    return _core.File(os.fspath(path))


def device_name(device: Any) -> str:
    """The name of a device, or of several, as the solver takes it.

    Parameters
    ----------
    device : str, torch.device, int, or a list of these
        "cpu", "cuda", "cuda:1"; a number is a CUDA device.

    Examples
    --------
    >>> device_name(["cuda:0", 2])
    'cuda:0,2'
    """
    if isinstance(device, int):
        return f"cuda:{device}"
    if isinstance(device, str) or not isinstance(device, Iterable):
        return str(device)
    names = [device_name(one) for one in device]
    if len(names) == 1:
        return names[0]
    numbers = [
        name.removeprefix("cuda").removeprefix(":") or "0" for name in names
    ]
    if not names or not all(number.isdecimal() for number in numbers):
        raise ValueError(f"devices {device!r} are not a list of CUDA devices")
    return "cuda:" + ",".join(numbers)


def on_device(x: Any) -> bool:
    """Whether an array is in memory that the CPU cannot read."""
    if hasattr(x, "__dlpack_device__"):
        return int(x.__dlpack_device__()[0]) not in _HOST_MEMORY
    return hasattr(x, "__cuda_array_interface__")


def as_source(x: Any) -> Any:
    """What the solver reads rows from, without a copy where that is possible."""
    if isinstance(x, (str, os.PathLike)):
        return open_vectors(x)
    if is_rows(x):
        return x
    if not _core.is_in_place(x):
        return ArrayRows(as_array(x))
    if len(x.shape) != 2:
        _refuse_shape(len(x.shape))
    return x


def is_rows(x: Any) -> bool:
    """Whether rows are to be had by ``read(begin, count)``."""
    return hasattr(x, "read") and hasattr(x, "shape")


def as_array(x: Any) -> npt.NDArray[Any]:
    """A two-dimensional array of real numbers.

    Raises
    ------
    TypeError
        If ``x`` is not numeric, or is in memory of a device but cannot be read
        there.
    ValueError
        If ``x`` is not two-dimensional.
    """
    if hasattr(x, "toarray"):
        raise TypeError(
            "sparse input is not supported: pass a dense array (X.toarray())"
        )
    if on_device(x):
        raise TypeError(
            "arrays on a device are read where they are: float32, float16, "
            "bfloat16, int8 or uint8, in C order; this is not, of type "
            f"{getattr(x, 'dtype', 'unknown')}"
        )
    if not isinstance(x, np.ndarray) and hasattr(x, "__dlpack__"):
        try:
            x = np.from_dlpack(x)
        except (BufferError, RuntimeError) as error:
            raise TypeError(f"rows cannot be read: {error}") from None
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
        _refuse_shape(x.ndim)
    array: npt.NDArray[Any] = x
    return array


def as_float32(x: Any, device: str = "cpu") -> npt.NDArray[np.float32]:
    """The rows as one float32 array in C order, in host memory.

    Parameters
    ----------
    x : as for ``as_source``
    device : str
        Where they may be instead: they are copied from there.
    """
    source = as_source(x)
    if is_rows(source):
        whole = source.read(0, source.shape[0])
        return np.ascontiguousarray(whole, dtype=np.float32)
    if isinstance(source, np.ndarray) and source.dtype == np.float32:
        return source
    return _core.to_float32(source, device)


def plain_int64(x: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The same array as a C long, which faiss insists on; the compiled code
    makes it a long long."""
    return x.view(np.int64)


def _refuse_shape(dimensions: int) -> None:
    raise ValueError(
        f"Expected 2D array, got {dimensions}D array instead. "
        "Reshape your data: one row a sample."
    )
