#!/usr/bin/env python3
"""Runs FAISS's own Python tests, unchanged, over multi-assign indexes.

usage: run_python.py <plugin.so> <FAISS source directory> <module> [unittest
arguments]

FAISS_SUITES_MODE says which indexes (swap.h). What Python makes of a type
that has a multi-assign form, by its constructor, index_factory, read_index or
clone_index, is swapped on the way to the test.
"""

import ctypes
import os
import sys
import unittest

# The plugin has no FAISS of its own.
sys.setdlopenflags(os.RTLD_GLOBAL | os.RTLD_NOW)
import faiss  # noqa: E402

CLASSES = (
    "IndexIVFFlat",
    "IndexIVFPQ",
    "IndexIVFScalarQuantizer",
    "IndexIVFPQFastScan",
)
FUNCTIONS = ("index_factory", "read_index", "clone_index", "deserialize_index")


def load(path):
    plugin = ctypes.CDLL(path)
    plugin.faiss_suites_swap.argtypes = [ctypes.c_void_p]
    plugin.faiss_suites_swap.restype = ctypes.c_void_p
    plugin.faiss_suites_hold.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    return plugin


def swapper(plugin):
    """A function that swaps the index behind a Python object, in place."""
    holder = faiss.IndexPreTransform(faiss.IndexFlatL2(1))

    def swap(index):
        if not isinstance(index, faiss.Index):
            return index
        address = int(index.this)
        new_address = plugin.faiss_suites_swap(address)
        if new_address is None:
            raise RuntimeError(f"{type(index)} cannot be swapped")
        if new_address != address:
            owned = index.this.own()
            index.this.disown()  # deleted by the swap
            plugin.faiss_suites_hold(int(holder.this), new_address)
            index.this = faiss.downcast_index(holder.index).this
            plugin.faiss_suites_hold(int(holder.this), None)
            if owned:
                index.this.acquire()
        return index

    return swap


def install(swap):
    def swap_constructor(cls):
        stock_init = cls.__init__

        def init(self, *args):
            stock_init(self, *args)
            if type(self) is cls:
                swap(self)

        cls.__init__ = init

    def swap_result(function):
        return lambda *args, **kwargs: swap(function(*args, **kwargs))

    for name in CLASSES:
        swap_constructor(getattr(faiss, name))
    for name in FUNCTIONS:
        setattr(faiss, name, swap_result(getattr(faiss, name)))


def main():
    plugin, source, module = sys.argv[1:4]
    if os.environ.get("FAISS_SUITES_MODE", "stock") != "stock":
        install(swapper(load(plugin)))
    sys.path.insert(0, os.path.join(source, "tests"))
    os.chdir(os.path.join(source, "tests"))
    unittest.main(
        module=module, argv=[module] + sys.argv[4:], verbosity=2, exit=True
    )


if __name__ == "__main__":
    main()
