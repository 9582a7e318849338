import numpy as np
import pytest

faiss = pytest.importorskip("faiss")

import faiss_flashgmm as fg  # noqa: E402

K = 10
POLICIES = ["posterior", "nearest", "air", "soar", "demand"]


@pytest.fixture(scope="module")
def data():
    random = np.random.default_rng(5)
    centers = 0.7 * random.standard_normal((40, 24))
    points = centers[random.integers(40, size=6200)]
    points = (points + random.standard_normal((6200, 24))).astype(np.float32)
    return points[:6000], points[6000:]


def trained(x, factory="IVF32,Flat", metric=faiss.METRIC_L2, **options):
    index = faiss.index_factory(x.shape[1], factory, metric)
    return index, fg.train_ivf(index, x, niter=8, **options)


def centroids_of(index):
    ivf = faiss.downcast_index(faiss.extract_index_ivf(index))
    return faiss.downcast_index(ivf.quantizer).reconstruct_n(0, ivf.nlist)


def test_centroids_are_the_means(data):
    index, gmm = trained(data[0])
    assert index.is_trained
    np.testing.assert_array_equal(centroids_of(index), gmm.means_)
    # Not those of k-means.
    other = faiss.index_factory(24, "IVF32,Flat")
    other.train(data[0])
    assert not np.array_equal(centroids_of(other), gmm.means_)


@pytest.mark.parametrize(
    "factory", ["IVF32,SQ8", "IVF32,PQ6x4", "PCA12,IVF32,Flat", "IVF32,PQ6x4fs"]
)
def test_any_codec_and_transform_trains_and_searches(data, factory):
    x, q = data
    exact = faiss.IndexFlatL2(24)
    exact.add(x)
    truth = exact.search(q, 1)[1]
    ours, _ = trained(x, factory)
    stock = faiss.index_factory(24, factory)
    stock.train(x)
    found = []
    for index in (ours, stock):
        index.add(x)
        faiss.extract_index_ivf(index).nprobe = 32
        found.append((index.search(q, K)[1] == truth).any(axis=1).mean())
    assert found[0] > found[1] - 0.1


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "metric", [faiss.METRIC_L2, faiss.METRIC_INNER_PRODUCT]
)
def test_all_lists_hold_the_exact_neighbours_once(data, policy, metric):
    x, q = data
    index, gmm = trained(x, metric=metric)
    inflation = fg.add_multi(index, x, mixture=gmm, policy=policy)
    assert 1 < inflation <= 2
    assert index.ntotal == len(x)
    exact = faiss.IndexFlat(24, metric)
    exact.add(x)
    distances, ids = fg.search(index, q, K, nprobe=32)
    np.testing.assert_allclose(distances, exact.search(q, K)[0], rtol=1e-5)
    assert all(len(set(row)) == K for row in ids)
    # Without fg.search the copies show.
    assert any(len(set(row)) < K for row in index.search(q, K)[1])


def test_two_lists_find_more_at_equal_nprobe(data):
    x, q = data
    exact = faiss.IndexFlatL2(24)
    exact.add(x)
    truth = exact.search(q, K)[1]

    def recall(ids):
        return np.mean([len(set(a) & set(b)) / K for a, b in zip(ids, truth)])

    one, gmm = trained(x)
    two, _ = trained(x)
    one.add(x)
    fg.add_multi(two, x, mixture=gmm)
    assert recall(fg.search(two, q, K, nprobe=2)[1]) > 0.02 + recall(
        fg.search(one, q, K, nprobe=2)[1]
    )


def test_every_vector_finds_itself_at_nprobe_1(data):
    x, _ = data
    index, gmm = trained(x, variance_model="per_component", weight_model="free")
    fg.add_multi(index, x, mixture=gmm)
    distances, ids = fg.search(index, x, 1, nprobe=1)
    np.testing.assert_array_equal(ids[:, 0], np.arange(len(x)))
    assert distances.max() == 0


def test_inflation_is_held(data):
    x, _ = data
    for policy in POLICIES:
        index, gmm = trained(x)
        inflation = fg.add_multi(
            index, x, mixture=gmm, policy=policy, tau=0, max_inflation=1.1
        )
        assert inflation == pytest.approx(1.1, abs=1e-3)
        entries = sum(
            index.invlists.list_size(i) for i in range(index.nlist)
        )
        assert entries / len(x) == pytest.approx(inflation)


def test_ids_and_later_adds(data):
    x, q = data
    index, _ = trained(x)
    fg.add_multi(index, x[:100], ids=1000 + np.arange(100), policy="nearest")
    fg.add_multi(index, x[100:200], ids=5000 + np.arange(100), policy="nearest")
    ids = fg.search(index, q, 200, nprobe=32)[1]
    assert index.ntotal == 200
    assert set(ids[0]) == set(range(1000, 1100)) | set(range(5000, 5100))
    beyond = fg.search(index, q, 300, nprobe=32)
    assert (beyond[1][:, 200:] == -1).all()
    assert (beyond[0][:, 200:] == np.finfo(np.float32).max).all()


def test_wrong_input_is_named(data):
    x, q = data
    index, gmm = trained(x)
    with pytest.raises(ValueError, match="23 columns.*24"):
        fg.add_multi(index, x[:, :23], mixture=gmm)
    with pytest.raises(ValueError, match="needs mixture"):
        fg.add_multi(index, x)
    with pytest.raises(ValueError, match="max_inflation is 0.5"):
        fg.add_multi(index, x, policy="nearest", max_inflation=0.5)
    with pytest.raises(ValueError, match="policy=best"):
        fg.add_multi(index, x, policy="best")
    with pytest.raises(ValueError, match="repeat"):
        fg.add_multi(index, x[:2], ids=[1, 1], policy="nearest")
    with pytest.raises(TypeError, match="no IVF index"):
        fg.train_ivf(faiss.IndexFlatL2(24), x)
    with pytest.raises(ValueError, match="k = 0"):
        fg.search(index, q, 0)
    fast, _ = trained(x, "IVF32,PQ6x4fs")
    with pytest.raises(NotImplementedError, match="IVFPQFastScan"):
        fg.add_multi(fast, x, policy="nearest")
    index.add(x)
    with pytest.raises(ValueError, match="6000 vectors"):
        fg.train_ivf(index, x)


def test_kmeans_stands_in_for_that_of_faiss(data):
    x, _ = data
    theirs = faiss.Kmeans(24, 32, niter=10, seed=3)
    theirs.train(x)
    ours = fg.Kmeans(24, 32, niter=10, seed=3)
    last = ours.train(x)
    assert ours.centroids.shape == theirs.centroids.shape
    assert len(ours.obj) == 10 and last == ours.obj[-1]
    assert ours.obj[-1] < 1.1 * theirs.obj[-1]
    assert len(ours.iteration_stats) == 10
    distances, ids = ours.assign(x)
    assert distances.shape == ids.shape == (len(x),)
    unit = fg.Kmeans(24, 32, spherical=True, niter=5)
    unit.train(x)
    np.testing.assert_allclose(
        np.linalg.norm(unit.centroids, axis=1), 1, rtol=1e-5
    )


def test_the_same_seed_gives_the_same_index(data):
    x, q = data
    found = []
    for _ in range(2):
        index, gmm = trained(x, seed=9)
        fg.add_multi(index, x, mixture=gmm)
        found.append(fg.search(index, q, K, nprobe=4))
    np.testing.assert_array_equal(found[0][0], found[1][0])
