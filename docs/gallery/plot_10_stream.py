"""
A stream with drift
===================

Batches of 50 rows arrive and are forgotten. Half way the function changes. ``OnlineGP`` follows; how
quickly depends on how many of the last rows natural gradients average over, about ``batch_size /
natural_rate``: a large rate forgets sooner and is noisier.
"""

import matplotlib.pyplot as plt
import numpy as np

import duogp
from duogp.plots import BLUE, FAINT, INK, STYLE, VERMILION

plt.rcParams.update(STYLE)
rng = np.random.default_rng(0)
BATCHES, CHANGE = 160, 80


def signal(x, batch):
    return np.sin(2 * x) if batch < CHANGE else np.sin(2 * x + 2.0) + 0.4 * x


grid = np.linspace(-3, 3, 200)[:, None]
rates = (0.02, 0.2)
learners = {
    rate: duogp.OnlineGP("ivsgpr", num_inducing=25, batch_size=50, natural_rate=rate) for rate in rates
}
errors = {rate: [] for rate in rates}
shown = {}
for batch in range(BATCHES):
    x = rng.uniform(-3, 3, (50, 1))
    y = signal(x[:, 0], batch) + 0.15 * rng.standard_normal(50)
    for rate, online in learners.items():
        online.partial_fit(x, y)
        prediction = online.predict(grid)
        errors[rate].append(np.sqrt(np.mean((prediction.mean - signal(grid[:, 0], batch)) ** 2)))
        if batch == CHANGE + 12:
            shown[rate] = prediction.mean

# %%
# Left: the error of the function, batch by batch. Right: both means twelve batches (600 rows) after the
# change.

figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.4))
for rate, color in zip(rates, (BLUE, VERMILION)):
    left.plot(errors[rate], color=color, lw=1.5, label=f"natural_rate {rate}")
    right.plot(grid[:, 0], shown[rate], color=color, lw=1.6)
left.axvline(CHANGE, color=FAINT, lw=1)
left.annotate(
    "the function changes",
    (CHANGE, left.get_ylim()[1]),
    xytext=(-5, -10),
    textcoords="offset points",
    ha="right",
    fontsize=8.5,
)
left.set(xlabel="batch of 50 rows", ylabel="error of f", ylim=(0, None), title="error")
left.legend(loc="center left")
right.plot(grid[:, 0], signal(grid[:, 0], BATCHES), color=INK, lw=1.2, ls="--")
right.plot(grid[:, 0], signal(grid[:, 0], 0), color=FAINT, lw=1.2, ls="--")
right.annotate(
    "old function",
    (-2.4, signal(-2.4, 0)),
    xytext=(-10, 8),
    textcoords="offset points",
    color="#6f6f6f",
    fontsize=8.5,
)
right.annotate(
    "new function", (1.3, signal(1.3, BATCHES)), xytext=(-24, -16), textcoords="offset points", fontsize=8.5
)
right.set(xlabel="x", ylabel="f", title=f"{12 * 50} rows after the change")
plt.show()
