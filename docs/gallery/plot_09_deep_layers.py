"""
The layers of a deep GP
=======================

A function that changes quickly on the right and slowly on the left has no single lengthscale. The first layer of a deep GP stretches
x where the function is quick; the second is then stationary.
"""

import matplotlib.pyplot as plt
import numpy as np

import duogp
from duogp.plots import BLUE, INK, ORANGE, STYLE

plt.rcParams.update(STYLE)
rng = np.random.default_rng(0)


def signal(x):
    return np.sin(2 * np.pi * (0.6 * x + 5 * np.maximum(x - 0.45, 0) ** 2 * 2))


X = np.sort(rng.uniform(0, 1, (300, 1)), 0)
y = signal(X[:, 0]) + 0.1 * rng.standard_normal(300)
shallow = duogp.fit(X, y, "svgp", kernel="rbf", num_inducing=20)
deep = duogp.fit(
    X, y, "dgp", kernel="rbf", num_layers=2, num_inducing=20, steps=1500, batch_size=300, learning_rate=0.03
)

# %%
# Left: what the first layer makes of x, in scaled units (two standard deviations shaded). Middle and right: the predictions.

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
    error = np.sqrt(np.mean((prediction.mean - truth) ** 2))
    ax.set(title=f"{name}: error {error:.3f}", xlabel="x", ylim=(-1.7, 1.7))
panels[0].set_ylabel("y")
figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower right", ncols=3)
plt.show()
