"""The mixture as an estimator in the manner of scikit-learn."""

import inspect
import sys
import warnings

import numpy as np

from . import _core
from ._rows import as_array, as_float32, as_source

try:
    from sklearn.base import BaseEstimator as _Base
    from sklearn.base import DensityMixin as _Mixin
    from sklearn.exceptions import ConvergenceWarning, NotFittedError
except ImportError:

    class _Mixin:
        pass

    class ConvergenceWarning(UserWarning):
        """The fit ended before it converged."""

    class NotFittedError(ValueError, AttributeError):
        """The estimator has not been fitted."""

    class _Base:
        """get_params, set_params and repr as scikit-learn has them."""

        @classmethod
        def _names(cls):
            return sorted(
                name
                for name in inspect.signature(cls.__init__).parameters
                if name != "self"
            )

        def get_params(self, deep=True):
            return {name: getattr(self, name) for name in self._names()}

        def set_params(self, **params):
            for name, value in params.items():
                if name not in self._names():
                    raise ValueError(
                        f"Invalid parameter {name!r} for estimator {self!r}"
                    )
                setattr(self, name, value)
            return self

        def __repr__(self):
            defaults = inspect.signature(type(self).__init__).parameters
            shown = ", ".join(
                f"{name}={getattr(self, name)!r}"
                for name in self._names()
                if getattr(self, name) is not defaults[name].default
            )
            return f"{type(self).__name__}({shown})"


class FlashGMM(_Mixin, _Base):
    """Isotropic Gaussian mixture, fitted by exact EM in O(k d + chunk) memory.

    Parameters
    ----------
    n_components : int, default=1
    variance_model : {"per_component", "tied"}, default="per_component"
        One variance a component (scikit-learn's "spherical") or one for all.
    weight_model : {"free", "uniform"}, default="free"
    tol : float, default=1e-3
        Stop when an iteration gains less mean log-likelihood, relative to
        max(1, its absolute value). 0 runs all iterations.
    max_iter : int, default=100
    n_init : int, default=1
        Runs, of which the one of largest log-likelihood is kept.
    init_params : {"lloyd", "random_rows", "kmeans_pp"}, default="lloyd"
        Where the first means come from: a short k-means from random rows,
        random rows, or k-means++.
    means_init, variances_init, weights_init : array, default=None
        Where to start, of shapes (n_components, d), (n_components,) and
        (n_components,). The last two need the first.
    variance_floor : float, default=1e-6
        Smallest variance, relative to the mean variance of a coordinate.
    random_state : int, RandomState or None, default=None
        None draws a new seed for every fit.
    warm_start : bool, default=False
        Start from the last fit.
    device : str, default="cpu"
        "cpu", "cuda" or "cuda:N,..." for several devices.
    verbose : bool, default=False
        Show a progress bar with log-likelihood and time left (tqdm if it is
        installed, else a line an iteration on stderr).
    callback : callable, default=None
        Called with a dict after every chunk of rows (stage, iteration,
        rows_done, rows_total, log_likelihood, eta_seconds, ...). What it raises
        ends the fit.

    Attributes
    ----------
    means_ : float32 array of shape (n_components, d)
    variances_ : float64 array of shape (n_components,)
    weights_ : float64 array of shape (n_components,)
    precisions_ : float64 array of shape (n_components,), 1 / variances_
    lower_bound_ : float
        Mean log-likelihood of the rows at the start of the last iteration of
        the best run.
    n_iter_ : int
        Iterations of the best run.
    converged_ : bool
    history_ : list of dict
        What each iteration of each run did.
    n_features_in_ : int

    Examples
    --------
    >>> import numpy as np
    >>> from faiss_flashgmm import FlashGMM
    >>> x = np.array([[0.0], [0.2], [9.9], [10.1]], dtype=np.float32)
    >>> gmm = FlashGMM(n_components=2, random_state=0).fit(x)
    >>> sorted(round(float(m), 1) for m in gmm.means_[:, 0])
    [0.1, 10.0]
    >>> bool(gmm.predict(x)[0] == gmm.predict(x)[1])
    True
    """

    def __init__(
        self,
        n_components=1,
        *,
        variance_model="per_component",
        weight_model="free",
        tol=1e-3,
        max_iter=100,
        n_init=1,
        init_params="lloyd",
        means_init=None,
        variances_init=None,
        weights_init=None,
        variance_floor=1e-6,
        random_state=None,
        warm_start=False,
        device="cpu",
        verbose=False,
        callback=None,
    ):
        self.n_components = n_components
        self.variance_model = variance_model
        self.weight_model = weight_model
        self.tol = tol
        self.max_iter = max_iter
        self.n_init = n_init
        self.init_params = init_params
        self.means_init = means_init
        self.variances_init = variances_init
        self.weights_init = weights_init
        self.variance_floor = variance_floor
        self.random_state = random_state
        self.warm_start = warm_start
        self.device = device
        self.verbose = verbose
        self.callback = callback

    # --- fitting ---

    def fit(self, X, y=None, sample_weight=None):
        """Fit the mixture.

        Parameters
        ----------
        X : array of shape (n, d), path, or rows of ``open_vectors``
            Any real dtype and stride; float32 in C order is not copied, others
            are converted a chunk at a time.
        y : ignored
        sample_weight : array of shape (n,), default=None
            Weights >= 0; integers count as repeated rows.

        Returns
        -------
        self
        """
        self._fit(X, sample_weight, "none")
        if not self.converged_ and self.tol > 0:
            warnings.warn(
                f"{type(self).__name__} did not converge in "
                f"{self.max_iter} iterations: raise max_iter or tol.",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def _fit_centroids(self, X, sample_weight=None, *, spherical=False):
        """fit() for centroids: of norm 1 if spherical."""
        return self._fit(X, sample_weight, "unit" if spherical else "none")

    def _fit(self, X, sample_weight, constraint):
        source = as_source(X)
        self._check_counts(source.shape)
        if sample_weight is not None:
            sample_weight = np.ascontiguousarray(sample_weight, np.float32)
            if sample_weight.shape != (source.shape[0],):
                raise ValueError(
                    f"sample_weight of shape {sample_weight.shape} for "
                    f"{source.shape[0]} rows"
                )
            if not sample_weight.any():
                raise ValueError("all sample weights are zero")
        start = self._start()
        n_init = 1 if "means" in start else int(self.n_init)
        bar = _ProgressBar() if self.verbose else None

        def progress(state):
            if bar:
                bar.update(state)
            if self.callback is not None:
                self.callback(state)

        try:
            result = _core.fit(
                source,
                int(self.n_components),
                sample_weight=sample_weight,
                niter=int(self.max_iter),
                nredo=n_init,
                tol=float(self.tol),
                seed=_seed_of(self.random_state),
                variance_model=self.variance_model,
                weight_model=self.weight_model,
                constraint=constraint,
                init=self.init_params,
                variance_floor=float(self.variance_floor),
                max_rows_per_component=0,
                device=self.device,
                progress=progress if bar or self.callback else None,
                **start,
            )
        except ValueError as error:
            if "must be finite" in str(error):
                raise ValueError(
                    f"Input X contains NaN or infinity: {error}"
                ) from None
            raise
        finally:
            if bar:
                bar.close()
        self._keep(result, source.shape[1])
        return self

    def fit_stream(self, chunks, y=None):
        """Fit to rows that come in chunks.

        Parameters
        ----------
        chunks : iterable of arrays of shape (any, d)
            Read once into float32 memory, because EM visits the rows again in
            every iteration. Data larger than memory: pass ``fit`` a path, a
            memory-mapped array or ``open_vectors``.

        Returns
        -------
        self
        """
        parts = [as_float32(chunk) for chunk in chunks]
        if not parts:
            raise ValueError("no chunks to fit to")
        return self.fit(np.concatenate(parts))

    def fit_predict(self, X, y=None, sample_weight=None):
        """Fit, and return the most responsible component of each row."""
        return self.fit(X, sample_weight=sample_weight).predict(X)

    # --- what the mixture says of rows ---

    def responsibilities(self, X, m=2):
        """The m most responsible components of each row.

        Memory is O(n m), whatever n_components is.

        Parameters
        ----------
        X : array of shape (n, d)
        m : int, default=2

        Returns
        -------
        components : int64 array of shape (n, m), best first; -1: none left
        responsibilities : float32 array of shape (n, m)
        """
        components, log_scores, log_z = self._assign(X, m)
        return components, np.exp(log_scores - log_z[:, None])

    def predict(self, X):
        """The most responsible component of each row, shape (n,)."""
        return self._assign(X, 1)[0][:, 0]

    def predict_proba(self, X):
        """Responsibilities of all components, float64 of shape (n, k).

        For large k, use ``responsibilities``.
        """
        k = self._check_fitted()
        components, shares = self.responsibilities(X, k)
        out = np.zeros((components.shape[0], k + 1))
        np.put_along_axis(out, components, shares.astype(np.float64), axis=1)
        out = out[:, :k]  # column -1 took the padding
        return out / out.sum(axis=1, keepdims=True)

    def score_samples(self, X):
        """Log-density of each row, float64 of shape (n,)."""
        return self._assign(X, 1)[2].astype(np.float64)

    def score(self, X, y=None):
        """Mean log-density of the rows."""
        return float(self.score_samples(X).mean())

    def _n_parameters(self):
        k = self._check_fitted()
        variances = 1 if self.variance_model == "tied" else k
        weights = 0 if self.weight_model == "uniform" else k - 1
        return k * self.n_features_in_ + variances + weights

    def bic(self, X):
        """Bayesian information criterion; lower is better."""
        n = as_array(X).shape[0]
        return -2 * self.score(X) * n + self._n_parameters() * np.log(n)

    def aic(self, X):
        """Akaike information criterion; lower is better."""
        n = as_array(X).shape[0]
        return -2 * self.score(X) * n + 2 * self._n_parameters()

    def sample(self, n_samples=1):
        """Rows drawn from the mixture.

        Returns
        -------
        X : float32 array of shape (n_samples, d)
        y : int64 array of shape (n_samples,), the component of each row
        """
        k = self._check_fitted()
        if n_samples < 1:
            raise ValueError(
                f"Invalid value for 'n_samples': {n_samples}; at least 1"
            )
        random = np.random.default_rng(_seed_of(self.random_state))
        y = np.sort(random.choice(k, size=n_samples, p=self.weights_))
        noise = random.standard_normal((n_samples, self.n_features_in_))
        x = self.means_[y] + np.sqrt(self.variances_[y])[:, None] * noise
        return x.astype(np.float32), y

    # --- inside ---

    @property
    def precisions_(self):
        self._check_fitted()
        return 1 / self.variances_

    def _check_fitted(self):
        if not hasattr(self, "means_"):
            raise NotFittedError(
                f"This {type(self).__name__} instance is not fitted yet. Call "
                "'fit' with appropriate arguments before using this estimator."
            )
        return self.means_.shape[0]

    def _check_counts(self, shape):
        n, d = shape
        if n == 0 or d == 0:
            raise ValueError(
                f"Found array with {n} sample(s) and {d} feature(s) (shape="
                f"({n}, {d})) while a minimum of 1 is required."
            )
        if n < self.n_components:
            raise ValueError(
                "Expected n_samples >= n_components but got "
                f"n_components = {self.n_components}, n_samples = {n}"
            )

    def _start(self):
        if self.warm_start and hasattr(self, "means_"):
            return {
                "means": self.means_,
                "variances": self.variances_,
                "weights": self.weights_,
            }
        if self.means_init is None:
            if self.variances_init is not None or self.weights_init is not None:
                raise ValueError(
                    "variances_init and weights_init need means_init"
                )
            return {}
        start = {"means": as_float32(self.means_init)}
        for name, given in (
            ("variances", self.variances_init),
            ("weights", self.weights_init),
        ):
            if given is not None:
                start[name] = np.ascontiguousarray(given, dtype=np.float64)
        return start

    def _keep(self, result, d):
        best = [
            step
            for step in result["iterations"]
            if step["redo"] == result["best_redo"]
        ]
        bound = best[-1]["log_likelihood"] if best else -np.inf
        converged = bool(result["converged"])
        if self.warm_start and hasattr(self, "lower_bound_"):
            # The rule of the solver, across two fits.
            gain = bound - self.lower_bound_
            converged |= self.tol > 0 and gain < self.tol * max(1, abs(bound))
        self.means_ = result["means"]
        self.variances_ = result["variances"]
        self.weights_ = result["weights"]
        self.history_ = result["iterations"]
        self.n_iter_ = len(best)
        self.lower_bound_ = bound
        self.converged_ = converged
        self.n_features_in_ = d

    def _assign(self, X, m):
        self._check_fitted()
        x = as_float32(X)
        if x.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {x.shape[1]} features, but {type(self).__name__} is "
                f"expecting {self.n_features_in_} features as input."
            )
        if not np.isfinite(x).all():
            row, column = np.argwhere(~np.isfinite(x))[0]
            raise ValueError(
                f"Input X contains NaN or infinity: row {row}, column {column}"
            )
        return _core.assign(
            self.means_, self.variances_, self.weights_, x, int(m), self.device
        )


def _seed_of(random_state):
    if random_state is None:
        return int(np.random.default_rng().integers(2**63))
    if hasattr(random_state, "randint"):  # numpy.random.RandomState
        return int(random_state.randint(2**31 - 1))
    if hasattr(random_state, "integers"):  # numpy.random.Generator
        return int(random_state.integers(2**63))
    return int(random_state)


class _ProgressBar:
    """tqdm over the iterations of a run, or lines on stderr without it."""

    def __init__(self):
        try:
            from tqdm.auto import tqdm
        except ImportError:
            tqdm = None
        self._tqdm = tqdm
        self._bar = None
        self._at = None

    def update(self, state):
        if state["stage"] != "em" or (state["redo"], state["iteration"]) == self._at:
            return
        if self._at is None or self._at[0] != state["redo"]:
            self.close()
            if self._tqdm:
                self._bar = self._tqdm(
                    total=state["niter"], unit="it", desc="FlashGMM"
                )
        self._at = (state["redo"], state["iteration"])
        if self._bar is not None:
            self._bar.n = state["iteration"]
            if state["iteration"] > 0:
                self._bar.set_postfix(
                    log_likelihood=f"{state['log_likelihood']:.4f}"
                )
        elif state["iteration"] > 0:
            print(
                f"iteration {state['iteration']} of {state['niter']}, "
                f"log-likelihood {state['log_likelihood']:.4f}, "
                f"{state['eta_seconds']:.0f} s left",
                file=sys.stderr,
            )

    def close(self):
        if self._bar is not None:
            self._bar.close()
            self._bar = None
