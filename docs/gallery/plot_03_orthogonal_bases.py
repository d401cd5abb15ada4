"""
Orthogonal bases converging to the full GP
==========================================

An orthogonal second block adds points at the price of a second small factorisation. With fourteen points
for the covariance in every model, ORTH (``odsvgp``) adds points for the mean alone, SOLVE-GP (``solvegp``)
for mean and covariance; SVGP stays where fourteen points leave it. All objectives are bounds on the log
evidence of the exact GP, which SOLVE-GP approaches.
"""

import matplotlib.pyplot as plt
import numpy as np

import duogp
from duogp.plots import BLUE, FAINT, GREEN, INK, STYLE, VERMILION

plt.rcParams.update(STYLE)
rng = np.random.default_rng(0)
X = np.sort(rng.uniform(0, 10, (150, 1)), 0)
y = np.sin(2 * X[:, 0]) + 0.3 * np.cos(5 * X[:, 0]) + 0.2 * rng.standard_normal(150)

exact = duogp.fit(X, y, "exact", kernel="rbf")
svgp = duogp.fit(X, y, "svgp", kernel="rbf", num_inducing=14)
sizes = (2, 4, 7, 10, 14)
fits = {
    name: [duogp.fit(X, y, name, kernel="rbf", num_inducing=14, num_extra=extra) for extra in sizes]
    for name in ("odsvgp", "solvegp")
}


def bound(gp):
    """The objective of a row at the end of training, in scaled units."""
    return -gp.history.series("loss")[-1]


# %%
# Left: the bound against the points of the second block. Right: ORTH with ten of them. Its covariance is
# that of fourteen points, its mean that of twenty-four.

figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.4), width_ratios=(1, 1.25))
left.axhline(bound(exact), color=INK, lw=1, ls=(0, (4, 3)))
left.axhline(bound(svgp), color=FAINT, lw=1.4)
for (name, found), color in zip(fits.items(), (BLUE, GREEN)):
    left.plot(sizes, [bound(gp) for gp in found], "o-", color=color, ms=5, label=name)
left.annotate(
    "exact GP", (8, bound(exact)), xytext=(0, 4), textcoords="offset points", ha="center", fontsize=8.5
)
left.annotate(
    "svgp",
    (8, bound(svgp)),
    xytext=(0, 4),
    textcoords="offset points",
    ha="center",
    fontsize=8.5,
    color="#6f6f6f",
)
left.set(xlabel="points of the second block", ylabel="bound a row", title="fourteen points and some more")
left.set_ylim(top=bound(exact) + 0.12 * (bound(exact) - bound(svgp)))
left.legend(loc="center right", bbox_to_anchor=(1, 0.32))

grid = np.linspace(0, 10, 500)[:, None]
gp = fits["odsvgp"][sizes.index(10)]
for model, color, label in ((exact, INK, "exact GP"), (svgp, FAINT, "svgp"), (gp, BLUE, "odsvgp")):
    right.plot(
        grid[:, 0],
        model.predict(grid).mean,
        color=color,
        lw=1.6,
        label=label,
        ls="--" if model is exact else "-",
    )
right.plot(X[:, 0], y, ".", color=INK, ms=3, alpha=0.35, label="rows")
basis, scaler = gp.model.basis, gp.x_scaler
for points, color, height, label in (
    (basis.inducing, VERMILION, -2.0, "points of u"),
    (basis.orthogonal_inducing, BLUE, -2.2, "points of v"),
):
    where = scaler.inverse(points.detach().numpy().reshape(-1, 1))[:, 0]
    right.plot(where, np.full(len(where), height), "|", ms=8, mew=1.5, color=color, label=label)
right.set(xlabel="x", ylabel="y", title="posterior means", xlim=(-0.3, 10.3), ylim=(-2.4, 2.1))
figure.legend(*right.get_legend_handles_labels(), loc="outside lower right", ncols=6)
plt.show()
