"""The index of the C++ library, and the ways to it and back."""

import os
import pathlib
import pickle
import subprocess

import numpy as np
import pytest

import faiss_flashgmm as fg

K = 10
ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def data():
    random = np.random.default_rng(5)
    centers = 0.7 * random.standard_normal((40, 24))
    points = centers[random.integers(40, size=6200)]
    points = (points + random.standard_normal((6200, 24))).astype(np.float32)
    return points[:6000], points[6000:]


def built(x, description="IVF32_GMM,Flat,MA(demand,1.5)", **options):
    index = fg.Index(x.shape[1], description, **options)
    index.train(x)
    index.add(x)
    index.nprobe = 4
    return index


def exact(x, q, k=K):
    distances = ((q[:, None].astype(np.float64) - x) ** 2).sum(axis=2)
    ids = np.argsort(distances, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(distances, ids, 1), ids


def assert_same_search(a, b, q):
    for ours, theirs in zip(a.search(q, K), b.search(q, K)):
        np.testing.assert_array_equal(ours, theirs)


def test_it_finds_each_vector_once(data):
    x, q = data
    index = built(x)
    assert (index.d, index.ntotal, index.nlist) == (24, 6000, 32)
    assert index.is_trained
    assert index.entries_per_vector == pytest.approx(1.5, abs=1e-3)
    distances, ids = index.search(q, K, nprobe=32)
    np.testing.assert_allclose(distances, exact(x, q)[0], rtol=1e-4)
    assert all(len(set(row)) == K for row in ids)
    assert index.nprobe == 32


def test_inner_product_and_given_ids(data):
    x, q = data
    index = fg.Index(24, "IVF16_GMM,Flat,MA", metric="inner_product")
    index.train(x)
    index.add(x, np.arange(7, 6007))
    distances, ids = index.search(q, 1, nprobe=16)
    np.testing.assert_array_equal(ids[:, 0], (q @ x.T).argmax(axis=1) + 7)


def test_vectors_are_removed_with_their_copies(data):
    x, q = data
    index = built(x)
    assert index.remove_ids(np.arange(0, 6000, 2)) == 3000
    assert index.ntotal == 3000
    assert index.entries_per_vector > 1.4
    ids = index.search(q, K, nprobe=32)[1]
    assert (ids % 2 == 1).all()
    index.reset()
    assert index.ntotal == 0 and index.is_trained


def test_files_bytes_and_pickles_keep_it(data, tmp_path):
    x, q = data
    index = built(x, "PCA16,IVF32_GMM,SQ8,MA(soar,1.3)")
    index.write(tmp_path / "x.index")
    for same in (
        fg.read_index(tmp_path / "x.index"),
        fg.Index.from_bytes((tmp_path / "x.index").read_bytes()),
        pickle.loads(pickle.dumps(index)),
    ):
        same.nprobe = index.nprobe
        assert_same_search(index, same, q)
        assert same.description == index.description
        assert same.entries_per_vector == index.entries_per_vector
    same.add(x[:10])  # goes on by the same policy
    assert same.ntotal == 6010


def test_its_mixture_is_that_of_the_lists(data):
    x, _ = data
    gmm = built(x, "IVF32_GMM,Flat,MA(posterior)").mixture
    assert gmm.means_.shape == (32, 24)
    assert gmm.weights_.sum() == pytest.approx(1)
    assert np.isfinite(gmm.score(x))
    assert fg.Index(24, "IVF32,Flat").mixture is None


def test_wrong_input_is_named(data, tmp_path):
    x, q = data
    with pytest.raises(ValueError, match="'l1'"):
        fg.Index(24, "IVF32,Flat", metric="l1")
    with pytest.raises(ValueError, match="best"):
        fg.Index(24, "IVF32_GMM,Flat,MA(best)")
    index = fg.Index(24, "IVF32_GMM,Flat,MA")
    with pytest.raises(ValueError, match="train"):
        index.add(x)
    bad = x.copy()
    bad[7, 2] = np.nan
    with pytest.raises(ValueError, match="row 7"):
        index.train(bad)
    assert not index.is_trained
    index.train(x)
    with pytest.raises(ValueError, match="23 columns.*24"):
        index.search(q[:, :23], K)
    with pytest.raises(ValueError, match="2 ids for 3 vectors"):
        index.add(x[:3], [1, 2])
    with pytest.raises(ValueError, match="k = 0"):
        index.search(q, 0)
    with pytest.raises(ValueError, match="missing.index"):
        fg.read_index(tmp_path / "missing.index")
    cut = index.to_bytes()[:-1]
    with pytest.raises(ValueError):
        fg.Index.from_bytes(cut)


# --- beside the faiss package ---


@pytest.mark.parametrize("policy", ["posterior", "air", "soar", "demand"])
def test_add_multi_is_the_same_path_as_the_library(data, policy):
    """Same seed, same rows: the glue over the faiss package and the C++ classes
    find the same."""
    faiss = pytest.importorskip("faiss")
    x, q = data
    library = fg.Index(24, f"IVF32_GMM,Flat,MA({policy},1.4)")
    library.train(x)
    library.add(x)
    glue = faiss.index_factory(24, "IVF32,Flat")
    mixture = fg.train_ivf(glue, x)
    entries = fg.add_multi(
        glue, x, mixture=mixture, policy=policy, max_inflation=1.4
    )
    assert entries == pytest.approx(library.entries_per_vector, abs=1e-3)
    truth = exact(x, q)[1]
    for nprobe in (1, 2, 4, 8):
        found = [
            library.search(q, K, nprobe=nprobe)[1],
            fg.search(glue, q, K, nprobe=nprobe)[1],
        ]
        recalls = [
            np.mean([len(set(a) & set(b)) / K for a, b in zip(ids, truth)])
            for ids in found
        ]
        # Two builds of FAISS round differently: a tie may fall either way.
        assert recalls[0] == pytest.approx(recalls[1], abs=1e-3)
        assert (found[0] == found[1]).mean() > 0.999


def test_more_rows_than_training_takes_are_sampled_alike(data):
    faiss = pytest.importorskip("faiss")
    x, _ = data
    library = fg.Index(24, "IVF16_GMM,Flat")
    library.train(x)  # of 6000 rows, 16 * 256
    index = faiss.index_factory(24, "IVF16,Flat")
    mixture = fg.train_ivf(index, x)
    stock = library.to_faiss()
    centroids = faiss.downcast_index(stock.quantizer).reconstruct_n(0, 16)
    np.testing.assert_array_equal(centroids, mixture.means_)


@pytest.mark.parametrize("factory", ["IVF32,Flat", "IVF32,SQ8", "PCA8,IVF32,PQ4x4"])
def test_to_and_from_faiss_by_bytes(data, factory):
    faiss = pytest.importorskip("faiss")
    x, q = data
    theirs = faiss.index_factory(24, factory)
    mixture = fg.train_ivf(theirs, x, niter=5)
    fg.add_multi(theirs, x, mixture=mixture, max_inflation=1.3)
    ours = fg.Index.from_faiss(
        theirs, mixture=mixture, max_inflation=1.3, learn_from=x
    )
    assert ours.ntotal == 6000
    assert ours.entries_per_vector == pytest.approx(1.3, abs=1e-3)
    expected = fg.search(theirs, q, K, nprobe=4)
    np.testing.assert_allclose(
        ours.search(q, K, nprobe=4)[0], expected[0], rtol=1e-4, atol=1e-4
    )
    ours.add(q)
    back = ours.to_faiss()
    assert back.ntotal == 6200
    np.testing.assert_allclose(
        fg.search(back, q, K, nprobe=4)[0],
        ours.search(q, K)[0],
        rtol=1e-4,
        atol=1e-4,
    )
    single = ours.to_faiss("single")
    faiss.extract_index_ivf(single).nprobe = 32
    assert all(len(set(row)) == K for row in single.search(q, K)[1])


def test_fast_scan_goes_to_faiss_and_back(data):
    faiss = pytest.importorskip("faiss")
    x, q = data
    ours = built(x, "IVF32_GMM,PQ4x4fs,MA(soar,1.3)")
    theirs = ours.to_faiss()
    assert type(theirs).__name__ == "IndexIVFPQFastScan"
    again = fg.Index.from_faiss(theirs, policy="soar")
    again.nprobe = ours.nprobe
    assert_same_search(ours, again, q)
    assert again.entries_per_vector == ours.entries_per_vector


# --- beside the program ---


def program():
    """The program flashgmm of this checkout, or of FLASHGMM_PROGRAM."""
    default = ROOT / "build/release/faiss_flashgmm/tools/flashgmm"
    path = pathlib.Path(os.environ.get("FLASHGMM_PROGRAM", default))
    if not path.is_file():
        pytest.skip(f"no {path}")
    return path


def test_files_of_the_program_are_read_here_and_ours_there(data, tmp_path):
    flashgmm = program()
    x, q = data
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "q.npy", q)

    def call(*arguments):
        subprocess.run(
            [flashgmm, *map(str, arguments)],
            check=True,
            cwd=tmp_path,
            capture_output=True,
        )

    def found(name):
        call(
            "search", name, "q.npy", "-k", K, "--nprobe", 4, "-o", "found.ivecs"
        )
        rows = np.fromfile(tmp_path / "found.ivecs", dtype=np.int32)
        return rows.reshape(-1, K + 1)[:, 1:]

    call(
        *("build", "x.npy", "-o", "theirs.index"),
        *("--index", "IVF32_GMM,Flat,MA(demand,1.5)"),
    )
    theirs = fg.read_index(tmp_path / "theirs.index")
    assert theirs.description == "IVF32_GMM,Flat,MA(demand,1.5)"
    np.testing.assert_array_equal(
        theirs.search(q, K, nprobe=4)[1], found("theirs.index")
    )
    ours = built(x)
    ours.write(tmp_path / "ours.index")
    np.testing.assert_array_equal(
        ours.search(q, K, nprobe=4)[1], found("ours.index")
    )
