"""
Banana: points for decisions, points for the data
=================================================

After Figure 1 of Popescu et al. 2020. Decoupled components have points α that carry mean and variance
within the data, and points β, orthogonal to them, that only say where data are. SVGP has one set for both.
The paper's claim is that α move to the decision boundary. The titles say how far points are from it on
average: here α are nearer to it than β, but no nearer than the rows are. With longer training on the banana
table they are (the page on decoupled components has the numbers).
"""

import matplotlib.pyplot as plt
import numpy as np

import duogp
from duogp.plots import BLUE, INK, STYLE, VERMILION

plt.rcParams.update(STYLE)
rng = np.random.default_rng(3)
n = 800
label = rng.integers(0, 2, n)
angle = rng.uniform(0.05 * np.pi, 0.95 * np.pi, n)
radius = 1 + 0.2 * rng.standard_normal(n)
moons = np.column_stack([radius * np.cos(angle), radius * np.sin(angle)])
X = np.where(label[:, None] == 1, [1.0, 0.35] - moons, moons) + 0.2 * rng.standard_normal((n, 2))

common = {"likelihood": "bernoulli", "kernel": "rbf", "steps": 400, "random_state": 0}
fits = {
    "svgp, 40 points": duogp.fit(X, label, "svgp", num_inducing=40, **common),
    "dsgpc-free, 8 α and 32 β": duogp.fit(X, label, "dsgpc-free", num_inducing=8, num_extra=32, **common),
}

# %%
# Contours are the probability of the blue class.

across, up = np.meshgrid(np.linspace(-1.6, 2.6, 110), np.linspace(-1.3, 1.7, 90))
grid = np.column_stack([across.ravel(), up.ravel()])
figure, panels = plt.subplots(1, 2, figsize=(9.6, 3.9), sharex=True, sharey=True)
for ax, (title, gp) in zip(panels, fits.items()):
    p = gp.predict_proba(grid)[:, 1].reshape(across.shape)
    ax.contourf(across, up, p, levels=np.linspace(0, 1, 11), cmap="RdBu", alpha=0.35)
    line = ax.contour(across, up, p, levels=[0.5], colors=[INK], linewidths=1.4)
    for value, color in ((1, BLUE), (0, VERMILION)):
        ax.plot(*X[label == value].T, ".", ms=3, color=color, alpha=0.35)
    basis, scaler = gp.model.basis, gp.x_scaler
    alpha = scaler.inverse(basis.inducing.detach().numpy().reshape(-1, 2))
    second = getattr(basis, "orthogonal_inducing", None)
    if second is not None:
        beta = scaler.inverse(second.detach().numpy().reshape(-1, 2))
        ax.plot(*beta.T, "x", color=INK, ms=6, mew=1.4, label="β")
    ax.plot(
        *alpha.T, "o", color="white", mec=INK, ms=7, mew=1.5, label="α" if second is not None else "points"
    )
    border = np.concatenate(line.get_paths()[0].to_polygons(closed_only=False))
    away = {"α" if second is not None else "points": alpha, "rows": X} | (
        {} if second is None else {"β": beta}
    )
    far = {
        name: np.linalg.norm(border[:, None] - places, axis=-1).min(0).mean() for name, places in away.items()
    }
    ax.set_title(
        f"{title}; from the border: " + ", ".join(f"{k} {v:.2f}" for k, v in far.items()), fontsize=9
    )
    ax.set_xlabel("x₁")
    ax.set(xlim=(-1.6, 2.6), ylim=(-1.3, 1.7))
panels[0].set_ylabel("x₂")
handles = [h for ax in panels for h in ax.get_legend_handles_labels()[0]]
figure.legend(
    handles[-2:],
    ["β: where data are", "α, or all points: what to decide"],
    loc="outside lower center",
    ncols=2,
)
plt.show()
