"""
Decoupled lengthscales
======================

The example of Figure 1 of Zhu et al. 2023, a damped sine with few inducing points, and what the two kernels
of DCSVGP learn.

One lengthscale serves two purposes in SVGP. The mean needs a short one to follow the bumps; the conditional
covariance k − ‖φ‖² grows between the inducing points when the lengthscale is short. DCSVGP has a
lengthscale for each.
"""

import matplotlib.pyplot as plt
import numpy as np

import duogp
from duogp.data import dc_one_dimensional
from duogp.plots import BLUE, FAINT, INK, ORANGE, STYLE

plt.rcParams.update(STYLE)
toy = dc_one_dimensional(n=100, noise=0.1, seed=2)
grid = np.linspace(-2, 4, 600)[:, None]
truth = np.exp(-(grid[:, 0] + 1)) * np.sin(2 * np.pi * grid[:, 0])
settings = {"kernel": "rbf", "num_inducing": 12, "random_state": 2}
fits = {name: duogp.fit(toy.x, toy.y, name, **settings) for name in ("svgp", "dcsvgp")}

# %%
# Learned lengthscales, in scaled units. The kernel of the mean is the shorter one.

svgp, dcsvgp = (fits[name].hyperparameters() for name in ("svgp", "dcsvgp"))
single = np.ravel(svgp["lengthscale"])[0]
mean, covariance = (np.ravel(dcsvgp[f"lengthscale_{part}"])[0] for part in ("mean", "covariance"))
print(f"svgp {single:.3f}; dcsvgp: mean {mean:.3f}, covariance {covariance:.3f}")

# %%
# The noise of the rows is 0.1. SVGP explains what twelve points cannot follow as noise, for all x alike.

rng = np.random.default_rng(0)
figure, panels = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True)
for ax, (name, gp) in zip(panels, fits.items()):
    prediction = gp.predict(grid)
    low, high = prediction.interval(0.95)
    ax.fill_between(grid[:, 0], low, high, color=BLUE, alpha=0.18, lw=0, label="95 % interval")
    ax.plot(grid[:, 0], truth, color=ORANGE, lw=1.2, label="truth")
    ax.plot(grid[:, 0], prediction.mean, color=BLUE, lw=1.6, label="mean")
    ax.plot(toy.x, toy.y, ".", color=INK, ms=3, alpha=0.6, label="rows")
    points = gp.inducing_points[:, 0]
    ax.plot(points, np.full(len(points), -3.2), "|", color=FAINT, ms=9, label="inducing points")
    scores = prediction.metrics(truth + 0.1 * rng.standard_normal(len(grid)))
    ax.set_title(f"{name}: RMSE {scores['rmse']:.3f}, NLL {scores['nll']:.2f}")
    ax.set(xlabel="x", xlim=(-2.1, 4.1))
panels[0].set_ylabel("y")
figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
plt.show()
