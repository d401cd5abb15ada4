"""Predictions in float32: the form that answers, and how far it is from float64, measured when it is made.

Only the products behind the variance are in float32 (`duogp.bases.many_rows`); kernels and means stay
float64. Kernel values round at 6e-8 of the prior variance, and the weights of a nearly singular k(Z, Z)
magnify that: the error is a property of the model. It is measured at rows of every kind, and a model whose
error is too large is answered in float64.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from duogp.bases.many_rows import MATRICES, ManyRows, Precision
from duogp.errors import NumericalWarning
from duogp.posterior.prediction import PredictionError
from duogp.training.threads import full_precision

if TYPE_CHECKING:
    from duogp.posterior.gp import GP

#: Errors above this are not accepted, see `PredictionError`.
TOLERANCE = 1e-2
#: The bound is so many times the largest error that was seen: other rows may be a little worse.
MARGIN = 3.0
#: Rows of each kind that are compared.
ROWS = 256


class Road(NamedTuple):
    """The form that answers a prediction (None: the general one), its precision, and the error of float32."""

    form: Any
    precision: Precision
    error: PredictionError | None = None  # where float32 was asked for

    @property
    def matrices(self) -> int:
        """Float64 numbers that a row takes for every inducing point."""
        return self.form.matrices if isinstance(self.form, ManyRows) else MATRICES


def require_precision(precision: str) -> Precision:
    """The precision by its name, or a ValueError."""
    if precision not in get_args(Precision):
        raise ValueError(f"precision must be 'float64' or 'float32', got {precision!r}")
    return precision  # type: ignore[return-value]


def float32_road(gp: GP, *, in_parts: bool) -> Road:
    """The float32 form of a model where its error is tolerable, with a warning the float64 form where not."""
    quick = gp._quick_form("float32", in_parts=in_parts)
    exact = gp._quick_form("float64") if in_parts else None
    with full_precision():
        error = measured_error(gp, exact, quick, in_parts=in_parts)
    if error.largest <= TOLERANCE:
        return Road(quick, "float32", error)
    warnings.warn(
        f"precision='float32' would change variances by up to {error.variance:.1g} of themselves and means "
        f"by {error.mean:.1g} standard deviations (allowed: {TOLERANCE:g}): this model predicts in float64",
        NumericalWarning,
        stacklevel=4,
    )
    return Road(exact, "float64", error)


@torch.no_grad()
def measured_error(gp: GP, exact: Any, quick: Any, *, in_parts: bool) -> PredictionError:
    """The largest difference of two forms in what is reported of the rows of `comparison_rows`."""
    x = gp._inputs(comparison_rows(gp))
    mean, variance = 0.0, 0.0
    for piece in x.split(gp._chunk_rows()):
        pair = [gp._marginals_at(piece, in_parts=in_parts, form=form) for form in (exact, quick)]
        one, two = (gp._reports(f, gp._density(None, 0, len(piece)), None) for f in pair)
        # Of numbers: mean and variances; of classes: probabilities, latent means and their variances.
        places = slice(1, None) if gp.classes is None else slice(2, None)
        total = sum(one[places], start=torch.zeros((), dtype=torch.float64, device=x.device))
        unit = total.sqrt() if gp.classes is None else torch.ones_like(one[0])
        mean = max(mean, _largest(one[0] - two[0], unit))
        variance = max(
            variance, *(_largest(a - b, total) for a, b in zip(one[places], two[places], strict=True))
        )
    return PredictionError(MARGIN * mean, MARGIN * variance, len(x))


def _largest(difference: Tensor, unit: Tensor) -> float:
    """max |difference| / unit; infinite where it is no number."""
    found = float((difference.abs() / unit).max())
    return found if np.isfinite(found) else np.inf


def comparison_rows(gp: GP) -> NDArray[np.float64]:
    """Rows [m, d] in the units of X: inducing points, rows near and between them, and far away."""
    rng = np.random.default_rng(0)
    try:
        points = gp.inducing_points
        points = np.where(np.isfinite(points), points, 0.0)  # columns that are not used
    except ValueError:  # points in the space of features
        points = np.zeros((4 * ROWS, len(gp.columns)))
        points[:, gp.columns] = gp.x_scaler.inverse(rng.standard_normal((4 * ROWS, int(gp.columns.sum()))))
    spread = points.std(0) + np.where(gp.columns, 1e-3 * (1.0 + np.abs(points).max(0)), 0.0)

    def some() -> NDArray[np.float64]:
        return points[rng.integers(len(points), size=min(ROWS, 4 * len(points)))]

    near = some()
    away = rng.standard_normal((ROWS // 4, points.shape[1]))
    share = rng.uniform(size=(len(near), 1))
    return np.concatenate(
        [
            some(),
            near + 0.1 * spread * rng.standard_normal(near.shape),
            share * near + (1 - share) * some(),
            points.mean(0) + 5.0 * spread * away,
        ]
    )
