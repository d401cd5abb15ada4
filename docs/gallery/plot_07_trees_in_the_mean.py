"""
Trees in the mean, a GP in the covariance
=========================================

A step is hard for a stationary kernel and easy for trees; a smooth wave is the other way round.
``mean="trees"`` gives a GP boosted trees as its prior mean. They are cross-fitted: every training row gets
the prediction of trees that have not seen it, so that the residuals which the GP learns from are honest.
"""

import matplotlib.pyplot as plt
import numpy as np

import duogp
from duogp.plots import BLUE, INK, ORANGE, STYLE

plt.rcParams.update(STYLE)
rng = np.random.default_rng(0)


def draw(n):
    x = np.sort(rng.uniform(0, 10, (n, 1)), 0)
    return x, signal(x) + 0.15 * rng.standard_normal(n)


edges = np.array([1.1, 2.0, 3.7, 4.9, 5.6, 7.2, 8.3, 9.1])
levels = np.array([0.0, 2.0, -1.0, 1.2, 3.0, 0.3, 1.8, -0.6, 1.0])


def signal(x):
    return levels[np.searchsorted(edges, x[:, 0])] + 0.4 * np.sin(2 * x[:, 0])


X, y = draw(600)
X_new, y_new = draw(2000)
fits = {
    "a constant mean": duogp.fit(X, y, "svgp", num_inducing=60),
    "trees as the mean": duogp.fit(X, y, "svgp", num_inducing=60, mean="trees"),
}

# %%
# With a constant mean the kernel has to be short everywhere because of the steps, and the intervals are
# wide everywhere.

grid = np.linspace(0, 10, 1000)[:, None]
figure, panels = plt.subplots(1, 2, figsize=(9.6, 3.5), sharey=True)
for ax, (title, gp) in zip(panels, fits.items()):
    prediction = gp.predict(grid)
    low, high = prediction.interval(0.95)
    ax.fill_between(grid[:, 0], low, high, color=BLUE, alpha=0.18, lw=0, label="95 % interval")
    ax.plot(X[:, 0], y, ".", color=INK, ms=3, alpha=0.4, label="rows")
    ax.plot(grid[:, 0], signal(grid), color=ORANGE, lw=1.2, label="truth")
    ax.plot(grid[:, 0], prediction.mean, color=BLUE, lw=1.5, label="mean")
    scores = gp.predict(X_new).metrics(y_new)
    ax.set(title=f"{title}: RMSE {scores['rmse']:.3f}, NLL {scores['nll']:.2f}", xlabel="x")
panels[0].set_ylabel("y")
figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
plt.show()
