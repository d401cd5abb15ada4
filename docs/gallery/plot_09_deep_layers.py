"""
The layers of a deep GP
=======================

A stationary kernel has one lengthscale for all x. At a jump it has to be short, and the flat parts pay with
wiggles and wide intervals. The first layer of a deep GP stretches x where the function jumps; the second is
smooth in the stretched space.
"""

import matplotlib.pyplot as plt
import numpy as np

import duogp
from duogp.plots import BLUE, INK, ORANGE, STYLE

plt.rcParams.update(STYLE)
rng = np.random.default_rng(0)


def signal(x):
    return np.where(x < 0.35, -1.0, np.where(x < 0.7, 1.0, 0.0))


X = np.sort(rng.uniform(0, 1, (150, 1)), 0)
y = signal(X[:, 0]) + 0.05 * rng.standard_normal(150)
shallow = duogp.fit(X, y, "svgp", kernel="rbf", num_inducing=20)
deep = duogp.fit(
    X, y, "dgp", kernel="rbf", num_layers=2, num_inducing=20, steps=2000, batch_size=150, learning_rate=0.03
)

# %%
# Left: what the first layer makes of x, in scaled units (two standard deviations shaded). Middle and right:
# the predictions.

grid = np.linspace(0, 1, 400)[:, None]
first = deep.layer_variances(grid)[0]
hidden, spread = first.mean[:, 0], np.sqrt(first.residual + first.explained)[:, 0]
figure, (left, *panels) = plt.subplots(1, 3, figsize=(10.5, 3.3))
left.fill_between(grid[:, 0], hidden - 2 * spread, hidden + 2 * spread, color=ORANGE, alpha=0.3, lw=0)
left.plot(grid[:, 0], hidden, color=ORANGE, lw=1.8)
left.set(xlabel="x", ylabel="hidden unit", title="first layer")
truth = signal(grid[:, 0])
for ax, (gp, name) in zip(panels, ((shallow, "svgp"), (deep, "dgp, two layers"))):
    prediction = gp.predict(grid)
    low, high = prediction.interval(0.95)
    ax.fill_between(grid[:, 0], low, high, color=BLUE, alpha=0.18, lw=0, label="95 % interval")
    ax.plot(X[:, 0], y, ".", color=INK, ms=3, alpha=0.4, label="rows")
    ax.plot(grid[:, 0], prediction.mean, color=BLUE, lw=1.5, label="mean")
    scores = prediction.metrics(truth + 0.05 * np.random.default_rng(1).standard_normal(400))
    ax.set(title=f"{name}: RMSE {scores['rmse']:.2f}, NLL {scores['nll']:.2f}", xlabel="x", ylim=(-1.9, 1.9))
panels[0].set_ylabel("y")
figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower right", ncols=3)
plt.show()
