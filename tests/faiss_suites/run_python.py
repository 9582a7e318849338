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
    """A function from a Python object to one whose index is swapped."""
    holder = faiss.IndexPreTransform(faiss.IndexFlatL2(1))

    def swap(index):
        if index is None or not isinstance(index, faiss.Index):
            return index
        address = int(index.this)
        new_address = plugin.faiss_suites_swap(address)
        if new_address is None:
            raise RuntimeError(f"{type(index)} cannot be swapped")
        if new_address == address:
            return index
        owned = index.this.own()
        index.this.disown()  # deleted by the swap
        plugin.faiss_suites_hold(int(holder.this), new_address)
        result = faiss.downcast_index(holder.index)
        plugin.faiss_suites_hold(int(holder.this), None)
        if owned:
            result.this.acquire()
        if hasattr(index, "referenced_objects"):
            result.referenced_objects = index.referenced_objects
        return result

    return swap


class SwappedClass(type):
    """Stands for a class of FAISS: its objects, and isinstance, are those of
    the class; its constructor swaps."""

    def __call__(cls, *args):
        return cls.swap(cls.stock(*args))

    def __instancecheck__(cls, instance):
        return isinstance(instance, cls.stock)

    def __getattr__(cls, name):
        return getattr(cls.stock, name)


def install(swap):
    for name in CLASSES:
        stock = getattr(faiss, name)
        setattr(
            faiss,
            name,
            SwappedClass(name, (), {"stock": stock, "swap": staticmethod(swap)}),
        )

    def wrap(function):
        def swapped(*args, **kwargs):
            return swap(function(*args, **kwargs))

        return swapped

    for name in FUNCTIONS:
        setattr(faiss, name, wrap(getattr(faiss, name)))

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
