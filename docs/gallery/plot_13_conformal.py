"""
Conformal against model intervals
=================================

The interval of the model is as good as the model. Here the noise has heavy tails, which Gaussian noise
cannot have. Conformal intervals are scaled on rows kept aside: they hold the promised share of rows like
these, whatever the model, on average over x. They do not repair *where* the model is wrong.
"""

import matplotlib.pyplot as plt
import numpy as np

import duogp
from duogp.plots import BLUE, INK, STYLE, VERMILION

plt.rcParams.update(STYLE)
rng = np.random.default_rng(0)


def draw(n):
    x = rng.uniform(0, 6, (n, 1))
    return x, np.sin(2 * x[:, 0]) + 0.12 * rng.standard_t(2, n)


X, y = draw(600)
X_new, y_new = draw(6000)
model = duogp.GPRegressor("svgp", num_inducing=25, calibration_fraction=0.3, random_state=0).fit(X, y)
levels = np.array([0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98])


def held(kind):
    found = []
    for level in levels:
        low, high = model.predict_interval(X_new, level=level, kind=kind)
        found.append((np.mean((low <= y_new) & (y_new <= high)), np.mean(high - low)))
    return np.array(found).T


# %%
# Left: the 80 % intervals. Middle: the share of new rows inside, against the promised one. Right: the
# price, their mean width.

kinds = {"model": BLUE, "conformal": VERMILION}
results = {kind: held(kind) for kind in kinds}
grid = np.linspace(0, 6, 300)[:, None]
figure, (left, middle, right) = plt.subplots(1, 3, figsize=(10.6, 3.5), width_ratios=(1.5, 1, 1))
left.plot(X[:, 0], y, ".", color=INK, ms=3, alpha=0.4)
for kind, color in kinds.items():
    low, high = model.predict_interval(grid, level=0.8, kind=kind)
    left.plot(grid[:, 0], low, color=color, lw=1.5, label=kind)
    left.plot(grid[:, 0], high, color=color, lw=1.5)
    coverage, width = results[kind]
    middle.plot(levels, coverage, "o-", color=color, ms=4)
    right.plot(levels, width, "o-", color=color, ms=4)
left.set(xlabel="x", ylabel="y", title="80 % intervals", ylim=(-2.2, 2.2))
middle.plot([0.45, 1], [0.45, 1], color="#9a9a9a", lw=1, ls=(0, (4, 3)))
middle.set(xlabel="promised", ylabel="rows inside", title="coverage")
right.set(xlabel="promised", ylabel="mean width", title="width")
figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=2)
plt.show()
