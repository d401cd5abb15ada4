"""
Noise that depends on x: SVGP and PPGPR
=======================================

In the manner of Figure 1 of Jankowiak et al. 2020. SVGP has one noise for all x. The predictive objective
trains the density of a new row, in which the variance of f may stand for noise: PPGPR is narrow where the
rows are quiet and wide where they are not, without a model of the noise.
"""

import matplotlib.pyplot as plt
import numpy as np

import duogp
from duogp.plots import BLUE, INK, ORANGE, STYLE

plt.rcParams.update(STYLE)
rng = np.random.default_rng(0)


def draw(n):
    x = rng.uniform(-3, 3, (n, 1))
    spread = 0.03 + 0.45 / (1 + np.exp(-4 * x[:, 0]))
    return x, np.sin(2 * x[:, 0]) + spread * rng.standard_normal(n)


X, y = draw(800)
X_new, y_new = draw(4000)
fits = {
    "svgp": duogp.fit(X, y, "svgp", num_inducing=30),
    "ppgpr-chol": duogp.fit(X, y, "ppgpr-chol", num_inducing=30, steps=2500, batch_size=256, beta1=0.1),
}

# %%
# The inner band is the variance of f, the outer one adds the noise. In SVGP nearly all of it is noise, in
# PPGPR the variance of f does the work.

grid = np.linspace(-3, 3, 400)[:, None]
figure, panels = plt.subplots(1, 2, figsize=(9.6, 3.5), sharey=True)
for ax, (name, gp) in zip(panels, fits.items()):
    prediction = gp.predict(grid)
    inner, outer = 2 * np.sqrt(prediction.function_variance), 2 * prediction.std
    ax.plot(X[:, 0], y, ".", color=INK, ms=3, alpha=0.35, label="rows")
    for side in (-1, 1):
        ends = prediction.mean + side * inner, prediction.mean + side * outer
        ax.fill_between(
            grid[:, 0],
            *ends,
            color=BLUE,
            alpha=0.18,
            lw=0,
            label="+ noise: 2 std of a row" if side > 0 else None,
        )
    ends = prediction.mean - inner, prediction.mean + inner
    ax.fill_between(grid[:, 0], *ends, color=ORANGE, alpha=0.4, lw=0, label="± 2 std of f")
    ax.plot(grid[:, 0], prediction.mean, color=BLUE, lw=1.6, label="mean")
    scores = gp.predict(X_new).metrics(y_new)
    ax.set(title=f"{name}: NLL {scores['nll']:.2f}, RMSE {scores['rmse']:.3f}", xlabel="x", ylim=(-2.6, 2.6))
panels[0].set_ylabel("y")
figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
plt.show()
