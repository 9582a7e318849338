import pickle
import warnings

import numpy as np
import pytest

from faiss_flashgmm import FlashGMM, NotFittedError, open_vectors

warnings.simplefilter("ignore")

FITTED = ("means_", "variances_", "weights_")


def fitted(x, k=8, **options):
    options = {"random_state": 3, "tol": 0, "max_iter": 5} | options
    return FlashGMM(k, **options).fit(x)


def assert_same(a, b):
    for name in FITTED:
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


def log_density(gmm, x):
    """log N(x; mu_k, s_k I) + log pi_k in fp64, shape (n, k)."""
    x = np.asarray(x, dtype=np.float64)
    squared = ((x[:, None] - gmm.means_.astype(np.float64)) ** 2).sum(axis=2)
    d = x.shape[1]
    return (
        np.log(gmm.weights_)
        - d / 2 * np.log(2 * np.pi * gmm.variances_)
        - squared / (2 * gmm.variances_)
    )


def test_densities_and_responsibilities_are_those_of_the_mixture(blobs):
    gmm = fitted(blobs)
    logs = log_density(gmm, blobs)
    top = logs.max(axis=1, keepdims=True)
    expected = (top + np.log(np.exp(logs - top).sum(axis=1, keepdims=True)))[:, 0]
    np.testing.assert_allclose(gmm.score_samples(blobs), expected, atol=1e-4)
    assert gmm.score(blobs) == pytest.approx(expected.mean(), abs=1e-4)
    shares = np.exp(logs - expected[:, None])
    np.testing.assert_allclose(gmm.predict_proba(blobs), shares, atol=1e-5)
    np.testing.assert_array_equal(gmm.predict(blobs), logs.argmax(axis=1))
    components, two = gmm.responsibilities(blobs, 2)
    assert (components[:, 0] != components[:, 1]).all()
    np.testing.assert_allclose(
        two, np.take_along_axis(shares, components, 1), atol=1e-5
    )


def test_likelihood_never_falls(blobs):
    gmm = fitted(blobs, max_iter=30)
    bounds = np.array([step["log_likelihood"] for step in gmm.history_])
    assert len(bounds) == gmm.n_iter_ == 30
    assert (np.diff(bounds) > -1e-5 * np.abs(bounds[1:])).all()
    assert gmm.score(blobs) >= gmm.lower_bound_ - 1e-5 * abs(gmm.lower_bound_)


def test_equals_scikit_learn_iteration_by_iteration(blobs):
    mixture = pytest.importorskip("sklearn.mixture")
    x = blobs.astype(np.float64)
    start = x[:6].copy()
    variances = np.full(6, 9.0)
    weights = np.full(6, 1 / 6)
    for iterations in range(1, 8):
        theirs = mixture.GaussianMixture(
            6,
            covariance_type="spherical",
            means_init=start,
            precisions_init=1 / variances,
            weights_init=weights,
            max_iter=iterations,
            tol=0,
            reg_covar=0,
        ).fit(x)
        ours = fitted(
            x,
            6,
            max_iter=iterations,
            means_init=start,
            variances_init=variances,
            weights_init=weights,
        )
        assert ours.lower_bound_ == pytest.approx(
            theirs.lower_bounds_[-1]
            if hasattr(theirs, "lower_bounds_")
            else theirs.lower_bound_,
            rel=1e-5,
        )
        np.testing.assert_allclose(
            ours.means_, theirs.means_, rtol=1e-5, atol=1e-5
        )
        np.testing.assert_allclose(
            ours.variances_, theirs.covariances_, rtol=1e-5
        )
        np.testing.assert_allclose(ours.weights_, theirs.weights_, rtol=1e-5)


def test_any_dtype_stride_and_source_give_the_same_fit(blobs, tmp_path):
    x = np.round(blobs)
    expected = fitted(x)
    wide = np.zeros((x.shape[0], 2 * x.shape[1]), np.float32)
    wide[:, ::2] = x
    np.save(tmp_path / "x.npy", x)
    for same in (
        x.astype(np.float64),
        x.astype(np.float16),
        x.astype(np.int8),
        x.astype(np.int64),
        np.asfortranarray(x),
        wide[:, ::2],
        np.load(tmp_path / "x.npy", mmap_mode="r"),
        str(tmp_path / "x.npy"),
        tmp_path / "x.npy",
        open_vectors(tmp_path / "x.npy"),
        x.tolist(),
    ):
        assert_same(fitted(same), expected)
    assert_same(
        FlashGMM(8, random_state=3, tol=0, max_iter=5).fit_stream(
            [x[:100], x[100:]]
        ),
        expected,
    )


def test_wrong_input_is_named(blobs):
    bad = blobs.copy()
    bad[7, 2] = np.nan
    with pytest.raises(ValueError, match="row 7.*column 2"):
        fitted(bad)
    with pytest.raises(ValueError, match="row 7.*column 2"):
        fitted(blobs).predict(bad)
    with pytest.raises(ValueError, match="2D"):
        fitted(blobs[0])
    with pytest.raises(ValueError, match="n_components = 8.*n_samples = 5"):
        fitted(blobs[:5])
    with pytest.raises(ValueError, match="3 features.*16"):
        fitted(blobs).predict(blobs[:, :3])
    with pytest.raises(TypeError, match="not numbers|not real"):
        fitted(np.array([["a", "b"]] * 20))
    with pytest.raises(ValueError, match="'blue'"):
        fitted(blobs, variance_model="blue")
    with pytest.raises(ValueError, match="device 'tpu'"):
        fitted(blobs, device="tpu")
    with pytest.raises(ValueError, match="missing.fbin"):
        fitted("missing.fbin")
    with pytest.raises(ValueError, match="weight"):
        FlashGMM(2).fit(blobs, sample_weight=-np.ones(len(blobs)))
    with pytest.raises(ValueError, match="need means_init"):
        fitted(blobs, weights_init=np.ones(8) / 8)
    with pytest.raises(NotFittedError):
        FlashGMM(2).predict(blobs)


def test_integer_weights_count_as_repeated_rows(blobs, random):
    weights = random.integers(1, 4, size=len(blobs))
    # Where the start is given whole: a first draw sees rows, not weights.
    options = {
        "means_init": blobs[:8],
        "variances_init": np.full(8, 4.0),
        "weights_init": np.full(8, 1 / 8),
        "max_iter": 10,
    }
    weighted = FlashGMM(8, tol=0, **options).fit(blobs, sample_weight=weights)
    repeated = fitted(np.repeat(blobs, weights, axis=0), **options)
    np.testing.assert_allclose(weighted.means_, repeated.means_, atol=1e-4)
    np.testing.assert_allclose(weighted.weights_, repeated.weights_, rtol=1e-4)
    assert weighted.lower_bound_ == pytest.approx(repeated.lower_bound_, 1e-6)


def test_the_models_hold(blobs):
    tied = fitted(blobs, variance_model="tied", weight_model="uniform")
    assert np.ptp(tied.variances_) == 0
    np.testing.assert_allclose(tied.weights_, 1 / 8)
    free = fitted(blobs)
    assert np.ptp(free.variances_) > 0
    assert free.weights_.sum() == pytest.approx(1)
    # Parameters: means, variances, weights.
    n = len(blobs)
    assert tied.aic(blobs) == pytest.approx(
        -2 * n * tied.score(blobs) + 2 * (8 * 16 + 1)
    )
    assert free.bic(blobs) == pytest.approx(
        -2 * n * free.score(blobs) + np.log(n) * (8 * 16 + 8 + 7)
    )


def test_warm_start_goes_on_where_it_stopped(blobs):
    whole = fitted(blobs, max_iter=10)
    steps = FlashGMM(
        8, random_state=3, tol=0, max_iter=5, warm_start=True
    ).fit(blobs)
    steps.fit(blobs)
    np.testing.assert_allclose(steps.means_, whole.means_, atol=1e-4)
    assert steps.history_[0]["log_likelihood"] > whole.history_[0]["log_likelihood"]


def test_same_seed_same_fit_and_pickle(blobs):
    gmm = fitted(blobs)
    assert_same(gmm, fitted(blobs))
    assert_same(gmm, pickle.loads(pickle.dumps(gmm)))
    assert fitted(blobs, random_state=4).lower_bound_ != gmm.lower_bound_


def test_samples_look_like_the_mixture(blobs):
    gmm = fitted(blobs, max_iter=20)
    x, y = gmm.sample(20000)
    assert x.shape == (20000, 16) and x.dtype == np.float32
    np.testing.assert_allclose(
        np.bincount(y, minlength=8) / 20000, gmm.weights_, atol=0.02
    )
    assert gmm.score(x) == pytest.approx(gmm.score(blobs), rel=0.02)


def test_scikit_learn_takes_it_for_an_estimator():
    checks = pytest.importorskip("sklearn.utils.estimator_checks")
    import sklearn

    if tuple(map(int, sklearn.__version__.split(".")[:2])) < (1, 6):
        pytest.skip("check_estimator(on_fail=) is of 1.6")
    results = checks.check_estimator(FlashGMM(), on_fail=None)
    failed = [
        (r["check_name"], r["exception"])
        for r in results
        if r["status"] == "failed"
    ]
    assert failed == []
    assert len(results) > 40
