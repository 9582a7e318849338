"""The Python examples run, and say something."""

import pathlib
import runpy

import pytest

EXAMPLES = sorted(
    (pathlib.Path(__file__).parents[2] / "examples/python").glob("*.py")
)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path, monkeypatch, capsys):
    pytest.importorskip("faiss")
    rows = ["20000"] if path.stem == "from_disk" else []
    monkeypatch.setattr("sys.argv", [str(path), *rows])
    runpy.run_path(str(path), run_name="__main__")
    assert len(capsys.readouterr().out.splitlines()) >= 3
