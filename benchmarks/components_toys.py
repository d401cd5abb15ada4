"""Figures 8 and 9 of Popescu et al. (Decoupled Sparse GP Components): distributional variance on toy tables.

    python benchmarks/components_toys.py                     both figures
    python benchmarks/components_toys.py --only regression   Figure 8: components_toy_regression.png
    python benchmarks/components_toys.py --quick             a moment of training, nothing stored

The paper does not describe its toy tables. Ours: 120 rows of sin(2x) + noise with a gap between -0.5 and 1.5,
and 300 rows of two moons. What the figures are to show is that the distributional variance of DSGPC is small
at the rows and returns to the prior's away from them, as that of SGP and SOLVE-GP does; the shares of the
prior variance at the rows, in the gap and far away are stored in benchmarks/results/components_toys.json.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import make_moons

import duogp
from components import (
    FREE,
    LEVELS,
    PRINTED,
    PROBABILITY_SHADES,
    SGP,
    SOLVE,
    VARIANCE_SHADES,
    Plane,
    Variant,
    classes,
    extra_points,
    mark_points,
    observations,
    prior_variance,
    quietly,
    regression_settings,
    shades_of,
)
from drawing import IMAGES, RESULTS, common_legend, keep_part, rounded, save, tidy
from duogp.bench.provenance import stamp
from duogp.plots import BLUE, GREEN, INK, ORANGE, VERMILION
from duogp.posterior.gp import GP

Array = NDArray[np.float64]

STORE = RESULTS / "components_toys.json"
VARIANTS = (SGP, SOLVE, FREE, PRINTED)
ALPHA, BETA = 8, 8
GAP = (-0.5, 1.5)


def keep(part: str, content: dict[str, Any]) -> None:
    """Replace a part of the stored file."""
    about = {"alpha": ALPHA, "beta": BETA, **stamp("cpu")}
    keep_part(STORE, part, about | {"methods": content})


def title_of(variant: Variant) -> str:
    if not variant.two_blocks:
        return f"{variant.label}: {ALPHA + BETA} points"
    return f"{variant.label}: {ALPHA} α, {BETA} β"


def sizes(variant: Variant) -> dict[str, int]:
    """As many points in all for every method."""
    return variant.sizes(ALPHA if variant.two_blocks else ALPHA + BETA, BETA)


# -- Figure 8 ----------------------------------------------------------------------------------------------


def regression_rows() -> tuple[Array, Array]:
    random = np.random.default_rng(0)
    x = np.concatenate([random.uniform(-3.0, GAP[0], 60), random.uniform(GAP[1], 4.0, 60)])
    return x[:, None], np.sin(2 * x) + 0.1 * random.standard_normal(len(x))


def shares(gp: GP, prior: float, places: dict[str, Array], residual_at: Any) -> dict[str, float]:
    """Mean distributional variance at places, relative to the prior variance."""
    return {name: rounded(float(np.mean(residual_at(gp, where))) / prior) for name, where in places.items()}


def regression(quick: bool) -> None:
    from matplotlib import pyplot as plt

    X, y = regression_rows()
    along = np.linspace(-5.0, 6.0, 401)
    places = {
        "at_rows": X,
        "in_the_gap": np.linspace(*GAP, 51)[:, None],
        "far_away": np.linspace(8.0, 10.0, 11)[:, None],
    }
    figure, axes = plt.subplots(1, 4, figsize=(11.5, 3.1), layout="constrained", sharex=True, sharey=True)
    found = {}
    for ax, variant in zip(axes, VARIANTS, strict=True):
        settings = regression_settings(variant, *((4, 10) if quick else (300, 1500)), 0.05) | sizes(variant)
        gp = quietly(duogp.fit, X, y, variant.method, **settings)
        prior = prior_variance(gp) * float(gp.y_scaler.scale[0]) ** 2
        found[variant.label] = shares(gp, prior, places, lambda m, at: observations(m, at).residual)
        found[variant.label]["train_rmse"] = rounded(observations(gp, X).metrics(y)["rmse"])
        prediction = observations(gp, along[:, None])
        half = 2 * np.sqrt(prediction.residual)
        ax.fill_between(
            along, prediction.mean - half, prediction.mean + half, color=ORANGE, alpha=0.3, lw=0,
            label="mean ± 2 √(distributional variance)",
        )  # fmt: skip
        ax.plot(along, prediction.mean, color=BLUE, lw=1.5, label="mean")
        ax.scatter(X[:, 0], y, s=6, color=INK, alpha=0.6, lw=0, zorder=3, label="rows")
        mark_points(ax, gp)
        ax.set(xlim=(along[0], along[-1]), ylim=(-3.2, 3.2), xlabel="x")
        ax.set_title(title_of(variant), fontsize=9.5, loc="left")
        tidy(ax)
    common_legend(figure, list(axes[:2]))
    finish(figure, "regression", found, quick)


# -- Figure 9 ----------------------------------------------------------------------------------------------


def classification(quick: bool) -> None:
    from matplotlib import pyplot as plt

    X, y = make_moons(n_samples=300, noise=0.15, random_state=0)
    between = np.stack([np.linspace(-0.2, 0.2, 21), np.linspace(0.3, 0.0, 21)], 1)
    places = {"at_rows": X, "between_the_moons": between, "far_away": X + np.array([20.0, 0.0])}
    figure, axes = plt.subplots(2, 4, figsize=(11.5, 5.4), layout="constrained", sharex=True, sharey=True)
    found = {}
    for column, variant in zip(axes.T, VARIANTS, strict=True):
        gp = quietly(
            duogp.fit, X, y, variant.method, likelihood="bernoulli", steps=5 if quick else 2000,
            learning_rate=1e-2, schedule="cosine", solver="stochastic", random_state=0,
            **variant.settings, **sizes(variant),
        )  # fmt: skip
        found[variant.label] = shares(
            gp, prior_variance(gp), places, lambda m, at: classes(m, at).residual.ravel()
        )
        scores = classes(gp, X).metrics(y)
        found[variant.label] |= {f"train_{name}": rounded(scores[name]) for name in ("accuracy", "nll")}
        plane = Plane.of(gp, X, 40 if quick else 120)
        layers = (
            (plane.probability, PROBABILITY_SHADES),
            (plane.residual / prior_variance(gp), VARIANCE_SHADES),
        )
        for ax, (values, colours) in zip(column, layers, strict=True):
            ax.contourf(plane.x, plane.y, np.clip(values, 0, 1), LEVELS, cmap=shades_of(colours))
            ax.contour(plane.x, plane.y, plane.probability, [0.5], colors=INK, linewidths=1.2)
            ax.scatter(*X.T, s=3, color=INK, alpha=0.4, lw=0)
            ax.plot(*gp.inducing_points.T, "o", color=VERMILION, mec="white", ms=6, label="α points")
            if (beta := extra_points(gp)) is not None:
                ax.plot(*beta.T, "^", color=GREEN, mec="white", ms=6, label="β points")
            ax.set(xlim=(plane.x[0], plane.x[-1]), ylim=(plane.y[0], plane.y[-1]))
            tidy(ax)
        column[0].set_title(title_of(variant), fontsize=9.5, loc="left")
    axes[0, 0].set_ylabel("P(y = 1)", fontsize=9)
    axes[1, 0].set_ylabel("distributional variance", fontsize=9)
    common_legend(figure, list(axes[0, :2]))
    finish(figure, "classification", found, quick)


def finish(figure: Any, name: str, found: dict[str, Any], quick: bool) -> None:
    """Save picture and numbers, and print these."""
    from matplotlib import pyplot as plt

    if quick:
        plt.close(figure)
    else:
        save(figure, IMAGES / f"components_toy_{name}.png")
        keep(name, found)
    for label, row in found.items():
        print(f"{label:24s}" + "  ".join(f"{key} {value}" for key, value in row.items()))


TOYS = {"regression": regression, "classification": classification}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=list(TOYS))
    parser.add_argument("--quick", action="store_true", help="does everything still work?")
    options = parser.parse_args(arguments)
    for name, draw in TOYS.items():
        if options.only in (None, name):
            draw(options.quick)
    return 0


if __name__ == "__main__":
    sys.exit(main())
