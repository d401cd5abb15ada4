"""A stack: several fitted GPs as one model, whose predictive density is a mixture of theirs.

    numbers     p(y|x) = Σ_k Σ_s w_ks N(y | m_k(x), r_s² c_k(x) v_k(x)),     c_k(x) = exp(a_k + b_k g(x))
                m_k = (1 − δ) μ_k + δ m,    and the point prediction is m = Σ_j u_j μ_j
    classes     p(c|x) = w_0 π_c + Σ_k w_k p_k(c|x)^{1/T_k} / Z

μ_k, v_k are the moments of member k. A member may be the best judge of variances and not of means, so the two
are weighed apart: with the weights u means are averaged for the squared error, which is the point prediction,
and with w densities are mixed for the log score; δ says how far every member is moved to m. Variances are
those around m. c_k recalibrates the variance of a member: a_k where it is too sure everywhere, b_k where it
is too sure in some places, g(x) being the log of how much larger its squared errors are there (trees have
learned it from rows that members had not seen). The ladder of scales r_s gives the mixture the tails and the
peak that the errors have. T_k is a temperature, π the frequencies of the classes. Where targets are on a
grid of few values, y is the mixture rounded to it (`numerics.rounding`). Everything maximises the log score
of rows that the members have not seen (`fitting.stacking`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from duogp.bases.many_rows import Precision
from duogp.data.targets import require_support
from duogp.means import CrossFit
from duogp.methods import Method
from duogp.methods.settings import Settings
from duogp.models.model import Model
from duogp.posterior.draws import draws_count, require_memory, require_seed
from duogp.posterior.gp import GP
from duogp.posterior.laws import (
    LEAST,
    ClassLaw,
    MixtureLaw,
    MixturePrediction,
    bounded_excess,
)
from duogp.posterior.log_target import LogTargetGP
from duogp.posterior.prediction import ClassPrediction, Prediction, PredictionError
from duogp.posterior.units import Fitted
from duogp.training.history import History

Array = NDArray[np.float64]


class Stack(Fitted):
    """Several fitted GPs as one model, see the module. ``method_names``: one for each member."""

    name = "stack"

    def __init__(
        self,
        members: list[Any],
        law: list[MixtureLaw] | ClassLaw | Array,
        *,
        labels: list[str],
        settings: Settings,
        history: History,
        excess: CrossFit | None = None,
    ) -> None:
        first = members[0]
        self.members: list[Any] = members  # GP or LearnedOnly
        self.law, self.labels, self.excess = law, labels, excess
        self.settings, self.history = settings, history
        self.columns, self.x_scaler, self.y_scaler = first.columns, first.x_scaler, first.y_scaler
        self.single_output, self.classes = first.single_output, first.classes
        self.column_names = first.column_names
        self.known_noise = first.known_noise

    def __repr__(self) -> str:
        return f"Stack({', '.join(f'{label}: {w:.2f}' for label, w in self.weights.items())})"

    @property
    def weights(self) -> dict[str, float]:
        """What each member contributes, averaged over outputs; they sum to one (less the frequencies)."""
        law = self.law
        if isinstance(law, list):
            shares = np.mean([own.of_members for own in law], axis=0)
        else:
            shares = law.of_members if isinstance(law, ClassLaw) else law
        return dict(zip(self.labels, map(float, shares), strict=True))

    # -- prediction ------------------------------------------------------------------------------------------

    def predict(
        self, X: Any, *, noise: Any = None, in_parts: bool = True, precision: Precision | None = None
    ) -> Prediction | ClassPrediction:
        """As `GP.predict`; the disagreement of the members is a part of the variance of its own.

        Of float32 it reports the largest error of a member.
        """
        rows = self._rows(X)
        given = self.settings.predict_precision if precision is None else precision
        # In parts in any case: the law was fitted to these variances, to their last digits.
        found = [member.predict(rows, noise=noise, precision=given) for member in self.members]
        if isinstance(self.law, ClassLaw):
            out: Any = self._classes(cast("list[ClassPrediction]", found))
        else:
            out = self._numbers(rows, cast("list[Prediction]", found))
        return cast("Prediction | ClassPrediction", replace(out, **_told(found)))

    def _classes(self, found: list[ClassPrediction]) -> ClassPrediction:
        assert isinstance(self.law, ClassLaw) and self.classes is not None
        probabilities = self.law.probabilities(np.stack([p.probabilities for p in found]))
        shares = self.law.of_members / max(self.law.of_members.sum(), LEAST)
        shape = np.broadcast_shapes(*(p.latent_mean.shape for p in found))
        mean, residual, explained, own = (
            np.stack([np.broadcast_to(getattr(p, name), shape) for p in found])
            for name in ("latent_mean", "residual", "explained", "disagreement")
        )
        centre = np.tensordot(shares, mean, 1)
        between = np.tensordot(shares, own + (mean - centre) ** 2, 1)
        residual, explained = (np.tensordot(shares, part, 1) for part in (residual, explained))
        return ClassPrediction(probabilities, self.classes, centre, residual, explained, between)

    def _numbers(self, rows: NDArray, found: list[Prediction]) -> Prediction:
        n = len(rows)
        moments = {
            name: np.stack([np.broadcast_to(getattr(p, name), p.mean.shape).reshape(n, -1) for p in found])
            for name in ("mean", "residual", "explained", "noise", "disagreement")
        }  # [K, n, outputs]
        total = sum((moments[name] for name in moments if name != "mean"), start=np.zeros(1))
        if not isinstance(self.law, list):
            assert isinstance(self.law, np.ndarray)
            point = np.tensordot(self.law, moments["mean"], 1)
            return self._moments_of(moments, point, [self.law] * moments["mean"].shape[-1], None)
        g = self.log_excess(rows)
        outputs = range(moments["mean"].shape[-1])
        factors = np.stack([self.law[p].mean_factor(g[:, p]) for p in outputs], -1)
        parts = [self.law[p].components(moments["mean"][..., p], total[..., p], g[:, p]) for p in outputs]
        point = np.stack([self.law[p].point(moments["mean"][..., p]) for p in outputs], -1)
        moments["mean"] = np.stack([self.law[p].centres(moments["mean"][..., p]) for p in outputs], -1)
        return self._moments_of(moments, point, [law.of_members for law in self.law], factors, parts)

    def _moments_of(
        self,
        moments: dict[str, Array],
        point: Array,
        shares: list[Array],
        factors: Array | None,
        components: list[tuple[Array, Array, Array]] | None = None,
    ) -> Prediction:
        weights = np.stack(shares, -1)[:, None]  # [K, 1, outputs]
        scaled = weights if factors is None else weights * factors
        parts = {n: (scaled * v).sum(0) for n, v in moments.items() if n != "mean"}
        parts["disagreement"] += (weights * (moments["mean"] - point) ** 2).sum(0)
        values: dict[str, Any] = {name: self._shape(v) for name, v in {"mean": point, **parts}.items()}
        if components is None:
            return Prediction(**values)
        most = max(len(w) for *_, w in components)
        padded = [_padded(component, most) for component in components]
        means, stds, w = (np.stack(part, -1) for part in zip(*padded, strict=True))  # [J, n, outputs]
        if self.single_output:
            means, stds = means[..., 0], stds[..., 0]
        assert isinstance(self.law, list)
        values |= {"logs": tuple(law.logs for law in self.law)}
        values |= {"roundings": tuple(law.rounding for law in self.law)}
        return MixturePrediction(**values, component_mean=means, component_std=stds, weights=w)

    def log_excess(self, rows: NDArray) -> Array:
        """g(x), [n, outputs]: zero without a model of it."""
        if self.excess is None:
            return np.zeros((len(rows), len(self.y_scaler.scale)))
        device = self.members[0].model.beta1.device
        return bounded_excess(self.excess.at(rows[:, self.columns], device)[0])

    def predict_mean(self, X: Any) -> Array:
        """The point prediction alone at X [n, d]: [n] or [n, outputs]."""
        if self.classes is not None:
            raise ValueError("predict_mean is for numbers: this model knows labels, see predict_proba")
        rows = self._rows(X)
        means = np.stack([member.predict_mean(rows).reshape(len(rows), -1) for member in self.members])
        outputs = means.shape[-1]
        laws = self.law if isinstance(self.law, list) else [self.law] * outputs
        found = [
            law.point(means[..., p]) if isinstance(law, MixtureLaw) else law @ means[..., p]
            for p, law in enumerate(laws)
        ]
        return self._shape(np.stack(found, -1))

    def log_density(self, X: Any, y: Any, *, noise: Any = None) -> Array:
        """log p(y | x, data) [n] of rows X [n, d], y [n] or [n, outputs] (summed), in the user's units."""
        rows = self._rows(X)
        self.require_noise(noise, "log_density")
        if isinstance(self.law, ClassLaw):
            prediction = self.predict(rows)
            assert isinstance(prediction, ClassPrediction)
            codes = self._target(y, len(rows))[:, 0].astype(int)
            return np.log(prediction.probabilities[np.arange(len(rows)), codes])
        if isinstance(self.law, list):
            prediction = self.predict(rows, noise=noise, in_parts=False)
            assert isinstance(prediction, MixturePrediction)
            return prediction.log_density(self._target(y, len(rows)))
        require_support(self._target(y, len(rows)), self.members[0].model.likelihood.target)
        logs = np.stack([member.log_density(rows, y, noise=noise) for member in self.members])
        with np.errstate(divide="ignore"):
            return logsumexp(np.log(self.law)[:, None] + logs, axis=0)

    def require_noise(self, noise: Any, what: str) -> None:
        if self.known_noise and noise is None:
            raise ValueError(f"{what} needs noise=: this model was fitted with known noise, and learned none")

    # -- samples ---------------------------------------------------------------------------------------------

    def sample(
        self,
        X: Any,
        n: int = 1,
        *,
        seed: int | None = None,
        kind: str = "auto",
        observation_noise: bool = False,
        noise: Any = None,
    ) -> NDArray:
        """n joint draws at the rows of X: each is a draw of one member, chosen by its weight.

        X [rows, d]; draws [n, rows] or [n, rows, outputs].
        Draws of a member are recalibrated around its mean, row by row, as its density is.
        """
        n, rows, rng = draws_count(n), self._rows(X), np.random.default_rng(require_seed(seed))
        require_memory(n, len(rows))
        shares = np.array(list(self.weights.values()))
        which = rng.choice(len(self.members), n, p=shares / shares.sum())
        keywords = {"kind": kind, "observation_noise": observation_noise, "noise": noise}
        out: NDArray | None = None
        for k, member in enumerate(self.members):
            chosen = np.flatnonzero(which == k)
            if not len(chosen):
                continue
            draws = member.sample(rows, len(chosen), seed=int(rng.integers(2**31)), **keywords)
            if isinstance(self.law, list):
                draws = self._recalibrated(k, rows, draws, observation_noise, rng)
                draws = self._rounded(draws) if observation_noise else draws
            if out is None:
                out = np.empty((n, *draws.shape[1:]), dtype=draws.dtype)
            out[chosen] = draws
        assert out is not None
        return out

    def _recalibrated(
        self, k: int, rows: NDArray, draws: Array, each_row: bool, rng: np.random.Generator
    ) -> Array:
        assert isinstance(self.law, list)
        if any(law.logs is not None for law in self.law):
            return self._recalibrated_logs(k, rows, draws, each_row, rng)
        every = np.stack([member.predict_mean(rows).reshape(len(rows), -1) for member in self.members])
        mean = every[k]
        values, g = draws.reshape(len(draws), len(rows), -1), self.log_excess(rows)
        for p, law in enumerate(self.law):
            size = (len(draws), len(rows)) if each_row else (len(draws), 1)
            scale = law.scales(k, size, rng) * np.sqrt(law.factor(g[:, p])[k])
            values[..., p] = law.centres(every[..., p])[k] + (values[..., p] - mean[:, p]) * scale
        return values.reshape(draws.shape)

    def _rounded(self, draws: Array) -> Array:
        """Draws of targets that are on a grid, on it: [n, rows(, outputs)]."""
        assert isinstance(self.law, list)
        values = draws.reshape(*draws.shape[:2], -1)
        for p, law in enumerate(self.law):
            if law.rounding is not None:
                values[..., p] = law.rounding.nearest(values[..., p])
        return values.reshape(draws.shape)

    def _recalibrated_logs(
        self, k: int, rows: NDArray, draws: Array, each_row: bool, rng: np.random.Generator
    ) -> Array:
        """The same where the law is of z: what is drawn away from the mean counts in standard deviations."""
        assert isinstance(self.law, list) and self.law[0].logs is not None
        law, scale = self.law[0], self.law[0].logs
        found = [cast(Prediction, member.predict(rows, in_parts=False)) for member in self.members]
        means, variances = np.stack([p.mean for p in found]), np.stack([p.variance for p in found])
        g = self.log_excess(rows)[:, 0]
        ladder = law.scales(k, (len(draws), len(rows)) if each_row else (len(draws), 1), rng)
        centre, v = (part[k] for part in scale.moments_of_logs(law.centres(means), variances))
        if isinstance(self.members[k], LogTargetGP):
            away = scale.logs(draws) - scale.moments_of_logs(means, variances)[0][k]
        else:
            away = (draws - means[k]) * np.sqrt(v / variances[k])
        return scale.back(centre + away * ladder * np.sqrt(law.factor(g)[k]))

    def sample_paths(
        self, n: int = 1, *, seed: int | None = None, num_features: int = 1024
    ) -> Callable[[Any], Any]:
        """n functions of the member with the largest weight; see `GP.sample_paths`."""
        return self.best.sample_paths(n, seed=seed, num_features=num_features)

    # -- what was learned ------------------------------------------------------------------------------------

    @property
    def best(self) -> GP:
        """The GP with the largest weight."""
        order = np.argsort([-weight for weight in self.weights.values()])
        return next(self.members[k] for k in order if isinstance(self.members[k], GP))

    @property
    def method(self) -> Method:
        """Of the member with the largest weight."""
        return self.best.method

    @property
    def model(self) -> Model:
        """Of the member with the largest weight; all have the same likelihood."""
        return self.best.model

    @property
    def inducing_points(self) -> Array:
        """Of the member with the largest weight, [M, d]."""
        return self.best.inducing_points

    def covariance(self, X: Any) -> Array:
        """Of the functions at all rows, [outputs, n, n]: of the members, and between their means."""
        rows = self._rows(X)
        means = np.stack([member.predict_mean(rows).reshape(len(rows), -1) for member in self.members])
        every = np.stack([member.covariance(rows) for member in self.members])  # [K, outputs, n, n]
        laws = self.law if isinstance(self.law, list) else []
        g = self.log_excess(rows)
        out = []
        for p, law in enumerate(laws):
            share = law.of_members
            root = np.sqrt(law.mean_factor(g[:, p]))  # [K, n]
            centres = law.centres(means[..., p])
            away = centres - law.point(means[..., p])
            scaled = every[:, p] * root[:, :, None] * root[:, None, :]
            out.append(np.tensordot(share, scaled + away[:, :, None] * away[:, None, :], 1))
        return np.stack(out)

    def hyperparameters(self) -> dict[str, Any]:
        """Those of the member with the largest weight, and of all ``members`` by their labels."""
        members = {label: gp.hyperparameters() for label, gp in zip(self.labels, self.members, strict=True)}
        return {**self.best.hyperparameters(), "weights": self.weights, "members": members}


def _told(found: Sequence[Prediction | ClassPrediction]) -> dict[str, Any]:
    """The lowest precision of the members' predictions, and the largest error."""
    errors = [p.error for p in found if p.error is not None]
    error = None
    if errors:
        error = PredictionError(*(max(getattr(e, n) for e in errors) for n in ("mean", "variance", "rows")))
    return {"precision": min(p.precision for p in found), "error": error}


def _padded(component: tuple[Array, Array, Array], most: int) -> tuple[Array, Array, Array]:
    """Components of an output, with further ones of weight zero."""
    mean, std, weights = component
    missing = most - len(weights)
    if not missing:
        return component
    rows = mean.shape[1]
    return (
        np.concatenate([mean, np.zeros((missing, rows))]),
        np.concatenate([std, np.ones((missing, rows))]),
        np.concatenate([weights, np.zeros(missing)]),
    )
