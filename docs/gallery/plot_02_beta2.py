"""
β₂: how far the kernels may differ
==================================

β₂ weighs Ω, the price of two conditional means that disagree at the data. At β₂ = 0 the two kernels of
decoupled conditionals are free; at β₂ = 1 the objective is a bound on log p(y); as β₂ grows the model tends
to SVGP. A list of values is trained as one batch of models.
"""

import matplotlib.pyplot as plt
import numpy as np

import duogp
from duogp.plots import BLUE, FAINT, STYLE, VERMILION

plt.rcParams.update(STYLE)
rng = np.random.default_rng(1)


def draw(n):
    x = rng.uniform(0, 10, (n, 1))
    return x, np.sin(x[:, 0]) + 0.5 * np.sin(4 * x[:, 0]) + 0.1 * rng.standard_normal(n)


X, y = draw(200)
X_new, y_new = draw(2000)
betas = [0.0, 1e-3, 1e-1, 1.0, 10.0]
settings = {"kernel": "rbf", "num_inducing": 10, "random_state": 0}
fits = [duogp.fit(X, y, "dcsvgp", beta2=beta, **settings) for beta in betas]
scores = [gp.predict(X_new).metrics(y_new) for gp in fits]
svgp = duogp.fit(X, y, "svgp", **settings).predict(X_new).metrics(y_new)

# %%
# Small β₂: two lengthscales, a low NLL, intervals a little too narrow. Large β₂: one lengthscale in effect,
# and the intervals of SVGP.

place = np.arange(len(betas))
figure, panels = plt.subplots(1, 3, figsize=(9.6, 3.1))
lengths = [
    [np.ravel(gp.hyperparameters()[f"lengthscale_{part}"])[0] for gp in fits]
    for part in ("mean", "covariance")
]
panels[0].plot(place, lengths[0], "o-", color=BLUE, ms=5)
panels[0].plot(place, lengths[1], "s-", color=VERMILION, ms=5)
panels[0].annotate(
    "covariance", (place[1], lengths[1][1]), xytext=(0, 7), textcoords="offset points", color=VERMILION
)
panels[0].annotate("mean", (place[1], lengths[0][1]), xytext=(0, 7), textcoords="offset points", color=BLUE)
panels[0].set(title="learned lengthscales", ylabel="in scaled units", ylim=(0, None))
for ax, metric, title in (
    (panels[1], "nll", "NLL of new rows"),
    (panels[2], "coverage", "95 % interval holds"),
):
    ax.plot(place, [row[metric] for row in scores], "o-", color=BLUE, ms=5)
    ax.axhline(svgp[metric], color=FAINT, ls=(0, (4, 3)))
    ax.annotate(
        "SVGP", (0, svgp[metric]), xytext=(0, -11), textcoords="offset points", color="#6f6f6f", fontsize=8.5
    )
    ax.set(title=title, ylabel="nats a row" if metric == "nll" else "share of rows")
panels[2].axhline(0.95, color=VERMILION, lw=1)
panels[2].annotate(
    "0.95",
    (place[-1], 0.95),
    xytext=(0, -11),
    textcoords="offset points",
    color=VERMILION,
    fontsize=8.5,
    ha="center",
)
for ax in panels:
    ax.set_xticks(place, ["0", "10⁻³", "0.1", "1", "10"])
    ax.set_xlabel("β₂")
plt.show()
