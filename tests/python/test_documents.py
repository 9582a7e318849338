"""The examples in the documents run."""

import doctest
import importlib
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["README.md", "docs/python.md"])
def test_python_examples_run(name, monkeypatch, tmp_path):
    pytest.importorskip("faiss")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / name).read_text(), re.S | re.M)
    assert blocks
    names = {}
    for block in blocks:  # those of a document build on each other
        exec(compile(block, name, "exec"), names)


@pytest.mark.parametrize("name", ["_estimator", "_faiss", "_index", "_rows"])
def test_docstrings_run(name):
    if name == "_faiss":
        pytest.importorskip("faiss")
    module = importlib.import_module(f"faiss_flashgmm.{name}")
    results = doctest.testmod(module)
    assert results.attempted > 0 and results.failed == 0
