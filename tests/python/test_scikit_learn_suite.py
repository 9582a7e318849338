"""The tests that scikit-learn ships for its GaussianMixture, run on ours.

They come with the installed scikit-learn. Scores and
parameters are compared to 5 decimals instead of 7: rows and means are float32
here. Left out is what asks for other
covariances than spherical ones, for its private functions, or for texts and
choices that are documented to differ here:

- test_regularisation wants degenerate components to be an error without
  regularization; here a variance floor is always there.
- test_gaussian_mixture_fit_convergence_warning and _verbose compare texts.
- the array API, and precisions_init of other covariances.
"""

import warnings

import numpy as np
import pytest

from faiss_flashgmm import FlashGMM

suite = pytest.importorskip("sklearn.mixture.tests.test_gaussian_mixture")

INITS = {
    "kmeans": "lloyd",
    "k-means++": "kmeans_pp",
    "random": "random_rows",
    "random_from_data": "random_rows",
}


class GaussianMixture(FlashGMM):
    """Ours, under the names of scikit-learn's parameters."""

    def __init__(
        self,
        n_components=1,
        *,
        covariance_type="spherical",
        tol=1e-3,
        reg_covar=1e-6,
        max_iter=100,
        n_init=1,
        init_params="kmeans",
        weights_init=None,
        means_init=None,
        precisions_init=None,
        random_state=None,
        warm_start=False,
        verbose=0,
        verbose_interval=10,
    ):
        super().__init__(
            n_components,
            tol=tol,
            max_iter=max_iter,
            n_init=n_init,
            init_params=INITS[init_params],
            means_init=means_init,
            weights_init=weights_init,
            variances_init=(
                None if precisions_init is None else 1 / np.array(precisions_init)
            ),
            random_state=random_state,
            warm_start=warm_start,
            verbose=bool(verbose),
        )

    @classmethod
    def _get_param_names(cls):
        return FlashGMM._get_param_names()

    def fit(self, X, y=None, sample_weight=None):
        super().fit(X, sample_weight=sample_weight)
        self.means_ = self.means_.astype(X.dtype)
        return self

    def score(self, X, y=None):
        return np.round(super().score(X), 5)

    def _start(self):
        start = super()._start()
        return {
            name: np.asarray(value, np.float32 if name == "means" else np.float64)
            for name, value in start.items()
        }

    def _assign(self, X, m):
        self._check_fitted()
        own, self.means_ = self.means_, self.means_.astype(np.float32)
        try:
            return super()._assign(X, m)
        finally:
            self.means_ = own

    covariances_ = property(lambda self: self.variances_)
    precisions_cholesky_ = property(lambda self: self.precisions_**0.5)
    lower_bounds_ = property(
        lambda self: [step["log_likelihood"] for step in self.history_]
    )


@pytest.fixture
def global_dtype():
    return np.float64


@pytest.fixture(params=range(5))
def global_random_seed(request):
    return request.param


@pytest.fixture(autouse=True)
def ours(monkeypatch):
    every_type = suite.COVARIANCE_TYPE
    make_data = suite.RandomData
    almost_equal = suite.assert_almost_equal

    def random_data(*args, **options):  # has rows for every type
        with monkeypatch.context() as patch:
            patch.setattr(suite, "COVARIANCE_TYPE", every_type)
            return make_data(*args, **options)

    monkeypatch.setattr(suite, "RandomData", random_data)
    monkeypatch.setattr(suite, "GaussianMixture", GaussianMixture)
    monkeypatch.setattr(suite, "COVARIANCE_TYPE", ["spherical"])
    monkeypatch.setattr(
        suite, "assert_almost_equal", lambda a, b: almost_equal(a, b, decimal=5)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


for name in (
    "test_bic_1d_1component",
    "test_convergence_detected_with_warm_start",
    "test_gaussian_mixture_aic_bic",
    "test_gaussian_mixture_fit",
    "test_gaussian_mixture_fit_best_params",
    "test_gaussian_mixture_fit_predict",
    "test_gaussian_mixture_fit_predict_n_init",
    "test_gaussian_mixture_n_parameters",
    "test_gaussian_mixture_predict_predict_proba",
    "test_gaussian_mixture_setting_best_params",
    "test_gaussian_mixture_single_component_stable",
    "test_init",
    "test_init_means_not_duplicated",
    "test_max_iter_zero",
    "test_means_for_all_inits",
    "test_monotonic_likelihood",
    "test_multiple_init",
    "test_sample",
    "test_score",
    "test_score_samples",
    "test_warm_start",
):
    if hasattr(suite, name):
        globals()[name] = getattr(suite, name)


@pytest.mark.parametrize(
    "name",
    [
        "test_gaussian_mixture_n_iter",
        "test_mixture_n_components_greater_than_n_samples_error",
    ],
)
def test_of_all_mixtures(name):
    every = pytest.importorskip("sklearn.mixture.tests.test_mixture")
    getattr(every, name)(FlashGMM())
