"""A fitted model: predictions, densities and samples in the user's units."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import nullcontext
from functools import cached_property
from typing import Any, Self, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from duogp.bases import FrozenPosterior, Marginals, clamp_variance
from duogp.bases.many_rows import Precision
from duogp.bases.marginals import TotalMarginals
from duogp.data.arriving import Arriving, Leaving
from duogp.data.scaling import Scaler
from duogp.data.targets import require_support
from duogp.likelihoods import Density, GaussianLikelihood, Likelihood
from duogp.methods import Method
from duogp.methods.settings import Settings
from duogp.models.model import Model
from duogp.posterior.described import described
from duogp.posterior.drawing import Drawing
from duogp.posterior.learned import LEAST_NOISE, LearnedMean
from duogp.posterior.precision import Road, float32_road, require_precision
from duogp.posterior.prediction import ClassPrediction, Prediction, PredictionError
from duogp.posterior.units import FREEZING
from duogp.training.history import History
from duogp.training.threads import full_precision

F = TypeVar("F", Marginals, TotalMarginals, Marginals | TotalMarginals)

#: Points up to which many rows have a form of their own: it is one more matrix.
QUICK_POINTS = 4096


class GP(Drawing):
    """What `duogp.fit` returns. Everything that does not depend on the new rows is computed once."""

    def __init__(
        self,
        model: Model,
        *,
        method: Method,
        settings: Settings,
        columns: NDArray[np.bool_],
        x_scaler: Scaler,
        y_scaler: Scaler,
        single_output: bool,
        history: History,
        known_noise: bool = False,
        column_names: list[str] | None = None,
        classes: NDArray | None = None,
        learned: LearnedMean | None = None,
    ) -> None:
        self.model = model.eval()
        self.method = method
        self.settings = settings
        self.columns = columns
        self.x_scaler = x_scaler
        self.y_scaler = y_scaler
        self.single_output = single_output
        self.history = history.in_units_of(y_scaler.scale)
        self.known_noise = known_noise  # all of the noise was given row by row, none was learned
        self.column_names = column_names
        self.classes = classes  # the labels behind class numbers; None for regression
        self.learned = learned  # a cross-fitted prior mean
        self._form: FrozenPosterior | None = None
        self._likelihood64: Likelihood | None = None
        self._roads: dict[bool, Road] = {}  # of float32, by whether variances come in parts

    def __repr__(self) -> str:
        parts = {
            "method": self.method.name,
            "inputs": len(self.columns),
            **(
                {"outputs": len(self.y_scaler.scale)}
                if self.classes is None
                else {"classes": len(self.classes)}
            ),
            "inducing": self.model.basis.inducing.shape[-2],
            "solver": self.history.solver,
        }
        return f"GP({', '.join(f'{name}={value!r}' for name, value in parts.items())})"

    def with_model(
        self,
        model: Model,
        history: History,
        *,
        method: Method | None = None,
        settings: Settings | None = None,
    ) -> Self:
        """Another model of the same table: columns, scales, labels and a cross-fitted mean stay."""
        return type(self)(
            model,
            method=self.method if method is None else method,
            settings=self.settings if settings is None else settings,
            history=history,
            **self._of_the_table(),
        )

    def _of_the_table(self) -> dict[str, Any]:
        """What a model knows of its table, as keywords of another's construction."""
        names = (
            "columns", "x_scaler", "y_scaler", "single_output", "known_noise", "column_names", "classes",
            "learned",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}

    # -- prediction ------------------------------------------------------------------------------------------

    @property
    def posterior(self) -> FrozenPosterior:
        """The frozen posterior of f in scaled units, without the prior mean."""
        if self._form is None:
            with FREEZING, torch.no_grad():
                if self._form is None:
                    self._form = self.model.frozen(torch.float64)
        return self._form

    @torch.no_grad()
    def freeze(self, factors: Any) -> Self:
        """Have the posterior made from factors of the model that are known; the same GP."""
        self._form = self.model.frozen(torch.float64, factors)
        return self

    @torch.no_grad()
    def predict(
        self, X: Any, *, noise: Any = None, in_parts: bool = True, precision: Precision | None = None
    ) -> Prediction | ClassPrediction:
        """Mean and variances of new rows X [n, d]; class probabilities where the targets are labels.

        The noise is one of the parts, and `Prediction.variance` their sum. ``noise``: known noise variances
        of the rows, where the fit was given some; without it the prediction of such a model is of f, not of
        an observation. ``in_parts=False``: half the work; the variance of f is reported as `explained`.
        ``precision="float32"``: products behind the variance in float32, means in float64; the error is
        measured once and reported (`Prediction.error`), and where it is above 1 % the answer is float64.
        None: the setting ``predict_precision``.
        """
        x = self._arriving(X)
        row_noise = self._row_noise(noise, len(x))
        road = self._road(len(x), in_parts, precision)
        leaving: list[Leaving] = []
        with full_precision() if road.precision == "float32" else nullcontext():
            for start, f in self._marginals(x, in_parts=in_parts, road=road):
                rows = f.mean.shape[-1]
                own = None if x.beside is None else self._disagreement(x.beside[start : start + rows])
                pieces = self._reports(f, self._density(row_noise, start, rows), own)
                leaving = leaving or [Leaving(len(x)) for _ in pieces]
                for each, piece in zip(leaving, pieces, strict=True):
                    each.add(piece)
        found = [each.all() for each in leaving]
        told: dict[str, Any] = {"precision": road.precision, "error": road.error}
        if self.classes is not None:
            return ClassPrediction(found[0], self.classes, *found[1:], **told)
        return Prediction(*map(self._shape, found), **told)

    @torch.no_grad()
    def predict_mean(self, X: Any) -> NDArray[np.float64]:
        """E[y | x] alone: one product of a vector where the variance takes one of a matrix.

        X [n, d] → [n] or [n, outputs].
        """
        likelihood = self.model.likelihood
        if self.classes is not None:
            raise ValueError("predict_mean is for numbers: this model knows labels, see predict_proba")
        if not isinstance(likelihood, GaussianLikelihood) or self.model.mixing is not None:
            return cast(Prediction, self.predict(X, in_parts=False)).mean  # it takes the variance to know
        x = self._arriving(X)
        leaving = Leaving(len(x))
        for piece in x.split(self._chunk_rows(matrices=1)):
            rows = piece[None, None]
            leaving.add(self._mean_to_user((self.posterior.mean(rows) + self.model.mean(rows))[0]))
        return self._shape(leaving.all())

    @torch.no_grad()
    def log_density(self, X: Any, y: Any, *, noise: Any = None) -> NDArray[np.float64]:
        """log p(y | x, data) [n] of rows X [n, d], y [n] or [n, outputs], summed over outputs."""
        self._require_noise(noise, "log_density")
        x = self._arriving(X)
        scaled = self._target(y, len(x))
        if self.classes is None:
            require_support(scaled, self.model.likelihood.target)
            scaled = self.y_scaler.transform(scaled)
        ys = torch.as_tensor(scaled, dtype=torch.float64, device=self.model.beta1.device).mT[None]
        row_noise = self._row_noise(noise, len(x))
        out = []
        for start, f in self._marginals(x, in_parts=False):
            rows = f.mean.shape[-1]
            density = self._density(row_noise, start, rows)
            out.append(density.log_predictive(ys[..., start : start + rows], f.mean, f.variance)[0])
        return torch.cat(out).cpu().numpy() - np.log(self.y_scaler.scale).sum()

    @property
    def prediction_error(self) -> PredictionError:
        """Bounds on what ``precision="float32"`` changes, measured at the first use."""
        error = self._road(0, True, "float32").error
        assert error is not None
        return error

    def _road(self, rows: int, in_parts: bool, precision: Precision | None) -> Road:
        """The form that answers so many rows soonest in the given precision."""
        wanted = require_precision(self.settings.predict_precision if precision is None else precision)
        if wanted == "float64":
            quick = in_parts and self._points <= min(rows, QUICK_POINTS)
            return Road(self._quick_form("float64") if quick else None, "float64")
        if in_parts not in self._roads:
            with FREEZING:
                if in_parts not in self._roads:
                    self._roads[in_parts] = float32_road(self, in_parts=in_parts)
        return self._roads[in_parts]

    def _quick_form(self, precision: Precision, *, in_parts: bool = True) -> Any:
        """The form for many rows."""
        return self.posterior.many_rows(precision, in_parts=in_parts)

    def _marginals(
        self, x: Arriving | Tensor, *, in_parts: bool = True, road: Road | None = None
    ) -> Iterator[tuple[int, Marginals | TotalMarginals]]:
        """What the likelihood sees at the rows, piece by piece, with where the piece begins."""
        start, road = 0, self._road(len(x), in_parts, "float64") if road is None else road
        for piece in x.split(self._chunk_rows(road.matrices)):
            f = self._marginals_at(piece, in_parts=in_parts, form=road.form)
            yield start, self._with_disagreement(f, x, start)
            start += len(piece)

    def _marginals_at(
        self, x: Tensor, *, in_parts: bool = True, form: Any = None
    ) -> Marginals | TotalMarginals:
        """What the likelihood sees at inputs [n, d] in scaled units, [1, latents, n]: tensors alone."""
        rows, form = x[None, None], self.posterior if form is None else form  # [1, 1, n, d]
        prior = self.posterior.prior.diag(rows)
        f: Marginals | TotalMarginals
        if in_parts:
            parts = form.marginals(rows)
            f = parts._replace(residual=clamp_variance(parts.residual, prior))
        else:
            mean, variance = form.total_marginals(rows)
            f = TotalMarginals(mean, clamp_variance(variance, prior))
        f = self.model.complete(f, rows)
        return type(f)(*torch.broadcast_tensors(*f))

    def _reports(
        self, f: Marginals | TotalMarginals, density: Density, disagreement: Tensor | None
    ) -> list[Tensor]:
        """What is told of the rows of f, each [outputs, n], in the order of the fields of a prediction.

        Mean and variances in the units of the targets, or probabilities of classes and moments of the latent
        functions; ``disagreement``: the variance between the folds of a learned mean, already part of f.
        """
        if self.classes is None:
            mean, *variances = density.predictive_moments(*_reported(f))
            pieces = [self._mean_to_user(mean[0]), *(self._variance_to_user(v[0]) for v in variances)]
        else:
            probabilities = density.class_probabilities(f.mean, f.variance)[0]
            pieces = [probabilities, *(part[0] for part in _reported(self._shown(f)))]
        return pieces if disagreement is None else self._apart(pieces, f, disagreement)

    def _with_disagreement(self, f: F, x: Arriving | Tensor, start: int) -> F:
        """Marginals with the variance between the folds of a learned mean, which counts as explained."""
        if isinstance(x, Tensor) or x.beside is None:
            return f
        own = self._disagreement(x.beside[start : start + f.mean.shape[-1]])
        return f._replace(**{f._fields[-1]: f[-1] + own})

    def _disagreement(self, spread: NDArray) -> Tensor:
        assert self.learned is not None
        return self.learned.disagreement(spread, self._slope, self._learned_scale)

    def _apart(self, pieces: list[Tensor], f: Marginals | TotalMarginals, part: Tensor) -> list[Tensor]:
        """Pieces of a prediction with the disagreement of the folds as a last one, taken off explained."""
        share = self._shown(f)[-1]
        part = part.expand(part.shape[0], share.shape[-2], -1) if part.shape[-2] == 1 else part
        ratio = (part / share.clamp_min(torch.finfo(share.dtype).tiny))[0].clamp(0, 1)
        explained = pieces[3 if self.classes is not None else 2]
        own = explained * ratio[: explained.shape[0]]
        at = 3 if self.classes is not None else 2
        return [*pieces[:at], explained - own, *pieces[at + 1 :], own]

    @property
    def _slope(self) -> Tensor:
        """Of the learned mean in each latent function, [1, latents]."""
        offset = getattr(self.model, "offset", None)
        mean: Any = self.model.mean if offset is None else offset
        return mean.slope.detach()

    def _shown(self, f: Marginals | TotalMarginals) -> Marginals | TotalMarginals:
        """Moments of f beside class probabilities, [1, latents, n]."""
        return f

    def _density(self, row_noise: Tensor | None, start: int, rows: int) -> Density:
        noise = None if row_noise is None else row_noise[..., start : start + rows]
        return self._likelihood.bind(noise)

    @property
    def _likelihood(self) -> Likelihood:
        """The likelihood in float64, for prediction."""
        if self._likelihood64 is None:
            likelihood = copy.deepcopy(self.model.likelihood).double().eval()
            if self.learned is not None and isinstance(likelihood, GaussianLikelihood):
                self._take_off_noise(likelihood)
            self._likelihood64 = likelihood  # complete: other threads may ask for it
        return self._likelihood64

    def _take_off_noise(self, likelihood: GaussianLikelihood) -> None:
        """What averaging the folds of a learned mean removes is no noise of new rows."""
        assert self.learned is not None
        removed = self.learned.removed_by_averaging(self._slope, self._learned_scale)
        if removed is not None and likelihood.learns_noise:
            noise = likelihood.noise()
            # Noise that was learned may be its floor to the last digit; what is written must be above it.
            least = (LEAST_NOISE * noise).clamp_min(1.001 * likelihood.noise.floor)
            likelihood.noise.set_(torch.maximum(noise - removed.reshape(noise.shape), least))

    # -- what was learned ------------------------------------------------------------------------------------

    @torch.no_grad()
    def hyperparameters(self) -> dict[str, Any]:
        """Learned values in scaled units: noise variance, kernels, prior mean."""
        return described(self.model)

    @property
    def inducing_points(self) -> NDArray[np.float64]:
        """The points that carry the covariance, [M, d] in the units of X (columns that were dropped: NaN)."""
        inducing = self.model.basis.inducing
        assert isinstance(inducing, Tensor)
        if self.settings.inducing_space == "feature" and "extractor" in self.method.defaults:
            raise ValueError("the inducing points live in the space of the features, not of X")
        dims = int(self.columns.sum())  # a generalised point has its lengthscales behind its place
        points = inducing[0, 0, :, :dims].detach().double().cpu().numpy()
        out = np.full((len(points), len(self.columns)), np.nan)
        out[:, self.columns] = self.x_scaler.inverse(points)
        return out

    def num_variational_parameters(self) -> int:
        """Numbers of q that were learned."""
        return self.model.basis.num_variational_parameters()

    # -- units -----------------------------------------------------------------------------------------------

    def _mean_to_user(self, mean: Tensor) -> Tensor:
        """[outputs, n] from scaled units to the user's, on the device where it lies."""
        scale, shift = self._units
        return mean.double() * scale + shift

    def _variance_to_user(self, variance: Tensor) -> Tensor:
        scale, _ = self._units
        if variance.stride(-1) == 0:  # the same for every row stays one number
            return (variance[:, :1].double() * scale.square()).expand(-1, variance.shape[-1])
        return variance.double() * scale.square()

    @cached_property
    def _units(self) -> tuple[Tensor, Tensor]:
        """Scale and shift of the targets, [outputs, 1], where the model is."""
        device = self.model.beta1.device
        scale, shift = (torch.as_tensor(v, device=device) for v in (self.y_scaler.scale, self.y_scaler.shift))
        return scale.unsqueeze(-1), shift.unsqueeze(-1)


def _reported(f: Marginals | TotalMarginals) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, residual and explained variance; a variance that was not taken apart counts as explained."""
    if isinstance(f, Marginals):
        return f
    return f.mean, f.variance.new_zeros(()).expand_as(f.variance), f.variance
