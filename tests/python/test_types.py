"""What type checkers and their users see of the package."""

import pathlib
import subprocess
import sys

import pytest

import faiss_flashgmm as fg

USER = '''
import numpy as np
import numpy.typing as npt

import faiss_flashgmm as fg

x = np.zeros((100, 4), dtype=np.float32)
gmm: fg.FlashGMM = fg.FlashGMM(3, device="cpu", verbose=True).fit(x)
labels: npt.NDArray[np.int64] = gmm.predict(x)
components, shares = gmm.responsibilities(x, m=2)
means: npt.NDArray[np.float32] = gmm.means_
score: float = gmm.score(x)
index = fg.Index(4, "IVF4_GMM,Flat,MA(soar,1.5)", metric="l2")
index.train(x)
index.add(x)
distances, ids = index.search(x, k=5, nprobe=2)
again: fg.Index = fg.Index.from_bytes(index.to_bytes())
entries: float = fg.add_multi(index.to_faiss(), x, mixture=gmm, max_inflation=1.2)
kmeans = fg.Kmeans(4, 3, niter=5)
objective: float = kmeans.train(x)
rows = fg.open_vectors("rows.npy")
n, d = rows.shape
'''


def mypy(folder, text):
    pytest.importorskip("mypy")
    (folder / "user.py").write_text(text)
    return subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "user.py"],
        cwd=folder,
        capture_output=True,
        text=True,
    )


def test_the_package_has_types(tmp_path):
    package = pathlib.Path(fg.__file__).parent
    assert (package / "py.typed").exists()
    assert (package / "_core.pyi").exists()
    checked = mypy(tmp_path, USER)
    assert checked.returncode == 0, checked.stdout


def test_wrong_use_does_not_pass(tmp_path):
    wrong = USER + 'gmm.score(x).wrong\nfg.Index("4", 5)\ngmm.predict(x, x)\n'
    checked = mypy(tmp_path, wrong)
    assert "Found 4 errors" in checked.stdout, checked.stdout


def test_the_stub_is_of_this_module():
    """Names of the compiled module and its stub are the same."""
    import ast

    from faiss_flashgmm import _core

    stub = pathlib.Path(fg.__file__).with_name("_core.pyi").read_text()
    stubbed = {
        node.name
        for node in ast.parse(stub).body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    }
    compiled = {
        name
        for name, value in vars(_core).items()
        if callable(value) and not name.startswith("_")
    }
    assert stubbed == compiled
