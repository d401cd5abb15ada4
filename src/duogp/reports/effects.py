"""Relevance and effects of the columns of a table, the parts of the variance, partial dependence."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from duogp.tables.schema import Schema
from duogp.tables.slices import sweep_of

#: Rows of which the effect of shuffling a column is measured.
SHUFFLED_ROWS = 2000
#: Rows that partial dependence is averaged over, and values of the column.
BACKGROUND_ROWS, POINTS = 48, 25

Array = NDArray[np.float64]


def relevance(gp: Any, schema: Schema) -> dict[str, float] | None:
    """1 / lengthscale of each column of the table as a share of their sum, the largest first.

    A column that is encoded as several inputs counts by the shortest of their lengthscales. Of decoupled
    conditionals it is that of the mean's kernel. None without a lengthscale for each input: a kernel that has
    none, one for all columns, or a network's features.
    """
    if not hasattr(gp, "hyperparameters"):
        return None
    learned = gp.hyperparameters()
    found = learned.get("lengthscale_mean", learned.get("lengthscale"))
    columns = np.asarray(gp.columns, dtype=bool)
    try:
        lengths = np.atleast_1d(np.asarray(found, dtype=np.float64))
    except (TypeError, ValueError):
        return None
    used = int(columns.sum())
    if getattr(getattr(gp, "best", gp), "learned", None) is not None:
        lengths = lengths[..., :used]  # behind them stand those of the learned mean
    extractor = gp.method is not None and getattr(gp.method, "has_network", False)
    if extractor or lengths.shape[-1] != used or not (lengths > 0).all():
        return None
    inverse = np.zeros(len(columns))
    inverse[columns] = (1 / lengths).reshape(-1, used).mean(0)
    sources = np.array(schema.sources)
    shares = {c.name: float(inverse[sources == c.name].max()) for c in schema.columns}
    total = sum(shares.values())
    if not total > 0:
        return None
    return dict(sorted(((name, value / total) for name, value in shares.items()), key=lambda p: -p[1]))


def importances(estimator: Any) -> dict[str, float] | None:
    """The share of each column of the table in what moves the predictions, the largest first.

    `feature_importances_` by name: a learned prior mean and all members of a stack are included. None of
    models that were saved without training rows.
    """
    shares = getattr(estimator, "feature_importances_", None)
    if shares is None:
        return None
    pairs = zip(estimator.feature_names_in_, shares.tolist(), strict=True)
    return dict(sorted(((str(name), share) for name, share in pairs), key=lambda pair: -pair[1]))


def has_learned_mean(gp: Any) -> bool:
    """Whether trees or a regression are the prior mean of the model, or of a member of a stack."""
    return any(getattr(member, "learned", None) is not None for member in getattr(gp, "members", [gp]))


def effects(gp: Any, schema: Schema, X: NDArray, seed: int = 0) -> dict[str, float]:
    """Root mean square change of the predictions when one column of the table is shuffled, the largest first.

    In the units of the target; of classes, of their probabilities.
    """
    rng = np.random.default_rng(seed)
    rows = X[np.sort(rng.permutation(len(X))[:SHUFFLED_ROWS])]
    sources = np.array(schema.sources)
    before = _predicted(gp.predict(rows))
    found = {}
    for column in schema.columns:
        changed = rows.copy()
        own = sources == column.name
        changed[:, own] = rows[rng.permutation(len(rows))][:, own]
        found[column.name] = float(np.sqrt(np.mean((_predicted(gp.predict(changed)) - before) ** 2)))
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))


def _predicted(prediction: Any) -> NDArray:
    return prediction.probabilities if hasattr(prediction, "probabilities") else prediction.mean


def variance_parts(prediction: Any) -> dict[str, float]:
    """Root of the average variance and the shares of its parts; of classes, of the latent functions.

    Where ``within_data_share`` is 0 (exact GPs), ``distributional_share`` is all the uncertainty of the
    function: `is_told_apart`.
    """
    parts = {"within_data": prediction.explained, "distributional": prediction.residual}
    parts["disagreement"] = np.broadcast_to(np.float64(prediction.disagreement), parts["within_data"].shape)
    if hasattr(prediction, "noise"):
        parts["noise"] = prediction.noise
    means = {name: float(np.mean(value)) for name, value in parts.items()}
    total = sum(means.values())
    shares = {f"{name}_share": value / total if total > 0 else float("nan") for name, value in means.items()}
    return {"std": float(np.sqrt(total)), **shares}


def is_told_apart(parts: dict[str, float]) -> bool:
    """Whether the model tells variance within the data from variance far from them; exact GPs do not."""
    return parts["within_data_share"] > 0


class Dependence(NamedTuple):
    """Partial dependence of the predictions on one column, at t of its values."""

    along: NDArray  # [t]: numbers, dates or texts
    curves: Array  # [t, rows]: of each row the mean, or the probability of one class
    mean: Array  # [t]: their average
    half: Array | None  # [t]: 1.96 standard deviations of the average, at most; None of probabilities
    label: str | None  # the class


def dependence(
    gp: Any, schema: Schema, table: Any, name: str, background: NDArray, points: int = POINTS
) -> Dependence:
    """The average prediction of ``background`` rows [rows, d] with the column ``name`` set to each value.

    The average of correlated functions has at most the average of their standard deviations, which is
    therefore the band. Of classes: the class whose probability the column moves most.
    """
    along, matrix = sweep_of(schema, table, name, background, points)
    t, rows, width = matrix.shape
    prediction = gp.predict(matrix.reshape(t * rows, width))
    if gp.classes is not None:
        curves = prediction.probabilities.reshape(t, rows, -1)
        averages = curves.mean(1)
        chosen = 1 if len(gp.classes) == 2 else int(np.argmax(np.ptp(averages, axis=0)))
        return Dependence(along, curves[..., chosen], averages[:, chosen], None, str(gp.classes[chosen]))
    curves = prediction.mean.reshape(t, rows)
    latent = prediction.residual + prediction.explained + prediction.disagreement
    half = 1.959964 * np.sqrt(np.maximum(latent, 0.0)).reshape(t, rows).mean(1)
    return Dependence(along, curves, curves.mean(1), half, None)
