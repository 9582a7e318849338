"""The examples in the documents run."""

import doctest
import pathlib
import re

import pytest

import faiss_flashgmm._estimator

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


def test_docstrings_run():
    assert doctest.testmod(faiss_flashgmm._estimator).failed == 0
