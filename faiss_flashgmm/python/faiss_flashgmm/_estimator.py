"""The mixture as an estimator in the manner of scikit-learn."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _core
from ._rows import as_float32, as_source, device_name, on_device, plain_int64

__all__ = ["ConvergenceWarning", "FlashGMM", "NotFittedError"]

#: What a progress callback gets.
State = dict[str, Any]

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
        def _names(cls) -> list[str]:
            return sorted(
                name
                for name in inspect.signature(cls.__init__).parameters
                if name != "self"
            )

        def get_params(self, deep: bool = True) -> dict[str, Any]:
            return {name: getattr(self, name) for name in self._names()}

        def set_params(self, **params: Any) -> _Base:
            for name, value in params.items():
                if name not in self._names():
                    raise ValueError(
                        f"Invalid parameter {name!r} for estimator {self!r}"
                    )
                setattr(self, name, value)
            return self

        def __repr__(self) -> str:
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
    device : str, torch.device, int, or list of these, default="cpu"
        "cpu", "cuda", "cuda:1" or 1; a list for several CUDA devices.
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
    >>> components, shares = gmm.responsibilities(x, m=2)
    >>> bool(components[0, 0] == components[1, 0])
    True
    >>> shares.sum(axis=1).round(3).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """

    means_: npt.NDArray[np.float32]
    variances_: npt.NDArray[np.float64]
    weights_: npt.NDArray[np.float64]
    lower_bound_: float
    n_iter_: int
    converged_: bool
    history_: list[dict[str, Any]]
    n_features_in_: int

    def __init__(
        self,
        n_components: int = 1,
        *,
        variance_model: str = "per_component",
        weight_model: str = "free",
        tol: float = 1e-3,
        max_iter: int = 100,
        n_init: int = 1,
        init_params: str = "lloyd",
        means_init: Any = None,
        variances_init: Any = None,
        weights_init: Any = None,
        variance_floor: float = 1e-6,
        random_state: Any = None,
        warm_start: bool = False,
        device: Any = "cpu",
        verbose: bool = False,
        callback: Callable[[State], object] | None = None,
    ) -> None:
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

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> FlashGMM:
        """Fit the mixture.

        Parameters
        ----------
        X : array of shape (n, d), path, or rows of ``open_vectors``
            float32, float16, bfloat16, int8 and uint8 in C order are read in
            place, also (with ``device="cuda"``) in memory of a GPU. Arrays of
            any other real dtype and stride are converted a chunk at a time.
        y : ignored
        sample_weight : array of shape (n,), default=None
            Weights >= 0; integers count as repeated rows. float32 in memory of
            the GPU if X is there.

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

    def _fit_centroids(
        self,
        X: Any,
        sample_weight: Any = None,
        *,
        spherical: bool,
        max_points_per_centroid: int,
    ) -> None:
        """fit() for centroids, as FAISS has it: of norm 1 if spherical, and of
        a sample of the rows."""
        self._fit(
            X,
            sample_weight,
            "unit" if spherical else "none",
            max_points_per_centroid,
        )

    def _fit(
        self,
        X: Any,
        sample_weight: Any,
        constraint: str,
        max_rows_per_component: int = 0,
    ) -> None:
        source = as_source(X)
        self._check_counts(source.shape)
        if sample_weight is not None and not on_device(sample_weight):
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

        def progress(state: State) -> None:
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
                max_rows_per_component=max_rows_per_component,
                device=device_name(self.device),
                progress=progress if bar or self.callback else None,
                **start,
            )
        except ValueError as error:
            raise _named(error) from None
        finally:
            if bar:
                bar.close()
        self._keep(result, int(source.shape[1]))

    def fit_stream(self, chunks: Iterable[Any], y: Any = None) -> FlashGMM:
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

    def fit_predict(
        self, X: Any, y: Any = None, sample_weight: Any = None
    ) -> npt.NDArray[np.int64]:
        """Fit, and return the most responsible component of each row."""
        return self.fit(X, sample_weight=sample_weight).predict(X)

    # --- what the mixture says of rows ---

    def responsibilities(
        self, X: Any, m: int = 2
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """The m most responsible components of each row.

        Memory is O(n m), whatever n_components is.

        Parameters
        ----------
        X : as for ``fit``
        m : int, default=2

        Returns
        -------
        components : int64 array of shape (n, m), best first; -1: none left
        responsibilities : float32 array of shape (n, m)
        """
        components, log_scores, log_z = self._assign(X, m)
        return components, np.exp(log_scores - log_z[:, None])

    def predict(self, X: Any) -> npt.NDArray[np.int64]:
        """The most responsible component of each row, shape (n,)."""
        components: npt.NDArray[np.int64] = self._assign(X, 1)[0]
        return components[:, 0]

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Responsibilities of all components, float64 of shape (n, k).

        For large k, use ``responsibilities``.
        """
        k = self._check_fitted()
        components, shares = self.responsibilities(X, k)
        out = np.zeros((components.shape[0], k + 1))
        np.put_along_axis(out, components, shares.astype(np.float64), axis=1)
        out = out[:, :k]  # column -1 took the padding
        out /= out.sum(axis=1, keepdims=True)
        return out

    def score_samples(self, X: Any) -> npt.NDArray[np.float64]:
        """Log-density of each row, float64 of shape (n,)."""
        log_z: npt.NDArray[np.float32] = self._assign(X, 1)[2]
        return log_z.astype(np.float64)

    def score(self, X: Any, y: Any = None) -> float:
        """Mean log-density of the rows."""
        return float(self.score_samples(X).mean())

    def _n_parameters(self) -> int:
        k = self._check_fitted()
        variances = 1 if self.variance_model == "tied" else k
        weights = 0 if self.weight_model == "uniform" else k - 1
        return k * self.n_features_in_ + variances + weights

    def bic(self, X: Any) -> float:
        """Bayesian information criterion; lower is better."""
        scores = self.score_samples(X)
        penalty = self._n_parameters() * np.log(scores.size)
        return float(penalty - 2 * scores.sum())

    def aic(self, X: Any) -> float:
        """Akaike information criterion; lower is better."""
        scores = self.score_samples(X)
        return float(2 * self._n_parameters() - 2 * scores.sum())

    def sample(
        self, n_samples: int = 1
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
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
    def precisions_(self) -> npt.NDArray[np.float64]:
        self._check_fitted()
        precisions: npt.NDArray[np.float64] = 1 / self.variances_
        return precisions

    def _check_fitted(self) -> int:
        if not hasattr(self, "means_"):
            raise NotFittedError(
                f"This {type(self).__name__} instance is not fitted yet. Call "
                "'fit' with appropriate arguments before using this estimator."
            )
        return int(self.means_.shape[0])

    def _check_counts(self, shape: tuple[int, int]) -> None:
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

    def _start(self) -> dict[str, Any]:
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

    def _keep(self, result: dict[str, Any], d: int) -> None:
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

    def _assign(self, X: Any, m: int) -> tuple[Any, ...]:
        self._check_fitted()
        source = as_source(X)
        if source.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {source.shape[1]} features, but {type(self).__name__} "
                f"is expecting {self.n_features_in_} features as input."
            )
        try:
            components, log_scores, log_z = _core.assign(
                self.means_,
                self.variances_,
                self.weights_,
                source,
                int(m),
                device_name(self.device),
            )
        except ValueError as error:
            raise _named(error) from None
        return plain_int64(components), log_scores, log_z


def _named(error: ValueError) -> ValueError:
    """The error, in words that scikit-learn looks for."""
    if "must be finite" in str(error):
        return ValueError(f"Input X contains NaN or infinity: {error}")
    return error


def _seed_of(random_state: Any) -> int:
    if random_state is None:
        return int(np.random.default_rng().integers(2**63))
    if hasattr(random_state, "randint"):  # numpy.random.RandomState
        return int(random_state.randint(2**31 - 1))
    if hasattr(random_state, "integers"):  # numpy.random.Generator
        return int(random_state.integers(2**63))
    return int(random_state)


class _ProgressBar:
    """tqdm over the iterations of a run, or lines on stderr without it."""

    def __init__(self) -> None:
        try:
            from tqdm.auto import tqdm
        except ImportError:
            tqdm = None
        self._tqdm: Any = tqdm
        self._bar: Any = None
        self._at: tuple[int, int] | None = None

    def update(self, state: State) -> None:
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

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
