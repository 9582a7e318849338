"""The adapters of public benchmarks, in packages that look like theirs."""

import importlib.util
import pathlib
import sys
import types

import numpy as np
import pytest

faiss = pytest.importorskip("faiss")

BENCHS = pathlib.Path(__file__).parents[2] / "benchs"


def package(monkeypatch, name, **members):
    """A module of that name, below packages of the names before its dots."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        module = types.ModuleType(".".join(parts[:end]))
        module.__path__ = []
        monkeypatch.setitem(sys.modules, module.__name__, module)
    vars(module).update(members)


def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Base:
    def get_batch_results(self):
        return self.res


def assert_found(found, x, q, k, least):
    truth = faiss.knn(q, x, k)[1]
    hits = 0
    for ids, true in zip(found, truth):
        ids = [i for i in ids if i >= 0]
        assert len(set(ids)) == len(ids) == k
        hits += len(set(ids) & set(true))
    assert hits >= least * truth.size


@pytest.mark.parametrize("metric", ["euclidean", "angular"])
@pytest.mark.parametrize("policy", ["single", "posterior", "demand"])
@pytest.mark.parametrize("codes", ["FlashGMM", "FlashGMMPQFastScan"])
def test_ann_benchmarks(monkeypatch, blobs, metric, policy, codes):
    name = "ann_benchmarks.algorithms"
    package(monkeypatch, f"{name}.base.module", BaseANN=Base)
    module = load(
        f"{name}.flashgmm.module", BENCHS / "ann_benchmarks/flashgmm/module.py"
    )
    algorithm = getattr(module, codes)(metric, 16, policy, 1.5)
    before = blobs.copy()
    algorithm.fit(blobs)
    algorithm.set_query_arguments(*([16] if codes == "FlashGMM" else [16, 20]))

    q = blobs[:20]
    algorithm.batch_query(q, 5)
    one_by_one = [algorithm.query(row, 5) for row in q]
    assert np.array_equal(blobs, before)  # the harness uses them again
    x = blobs.copy()
    if metric == "angular":
        faiss.normalize_L2(x)
    for found in (algorithm.get_batch_results(), one_by_one):
        assert_found(found, x, x[:20], 5, 1.0 if codes == "FlashGMM" else 0.95)
    entries = algorithm.get_additional()["entries_per_vector"]
    assert entries == 1 if policy == "single" else 1 < entries <= 1.5
    assert policy in str(algorithm)


@pytest.mark.parametrize("policy", ["single", "posterior"])
def test_big_ann_benchmarks(monkeypatch, tmp_path, blobs, policy):
    class Set:
        d = blobs.shape[1]

        def get_dataset_iterator(self, bs):
            for begin in range(0, len(blobs), bs):
                yield blobs[begin : begin + bs]

    package(monkeypatch, "benchmark.datasets", DATASETS={"set": Set})
    package(monkeypatch, "neurips23.ood.base", BaseOODANN=Base)
    module = load(
        "flashgmm", BENCHS / "big_ann_benchmarks/flashgmm/flashgmm.py"
    )
    monkeypatch.setattr(module, "BLOCK", 700)
    monkeypatch.chdir(tmp_path)

    def new():
        return module.FlashGMM(
            "euclidean", {"index": "IVF16,Flat", "policy": policy}
        )

    first, second = new(), new()
    assert not first.load_index("set")
    first.fit("set")
    assert second.load_index("set")
    for algorithm in (first, second):
        algorithm.set_query_arguments({"nprobe": 16})
        algorithm.query(blobs[:20], 5)
        assert_found(algorithm.get_results(), blobs, blobs[:20], 5, 1.0)
    second.res = np.array([[3, 1, 3]])
    with pytest.raises(AssertionError, match="twice"):
        second.get_results()
