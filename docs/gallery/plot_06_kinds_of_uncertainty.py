"""
Three kinds of uncertainty
==========================

A prediction keeps its variance in parts. The *explained* variance is the uncertainty about the values at
the inducing points, large where rows are few or noisy: more rows would help. The *residual* variance is
prior variance that the inducing points do not explain, large far from the data: rows from there would help.
The *noise* is the variance of observations among equal rows: another column would help. Estimators
(``explain_variance``) call the first two ``within_data`` and ``distributional``.
"""

import matplotlib.pyplot as plt
import numpy as np

import duogp
from duogp.plots import BLUE, INK, PARTS, STYLE

plt.rcParams.update(STYLE)
rng = np.random.default_rng(1)
# Many rows on the left, few in the middle, none from 6 to 8, many on the right.
x = np.concatenate([rng.uniform(0, 3, 120), rng.uniform(3, 6, 9), rng.uniform(8, 10, 60)])[:, None]
y = np.sin(1.5 * x[:, 0]) + 0.15 * rng.standard_normal(len(x))
gp = duogp.fit(x, y, "svgp", num_inducing=30)

# %%
# Above: the prediction. Below: the standard deviation that each part would have alone.

grid = np.linspace(-1.5, 11, 500)[:, None]
prediction = gp.predict(grid)
low, high = prediction.interval(0.95)
figure, (above, below) = plt.subplots(2, 1, figsize=(8, 5), sharex=True, height_ratios=(1.5, 1))
above.fill_between(grid[:, 0], low, high, color=BLUE, alpha=0.15, lw=0, label="95 % interval")
above.plot(grid[:, 0], prediction.mean, color=BLUE, lw=1.6, label="mean")
above.plot(x[:, 0], y, ".", color=INK, ms=4, alpha=0.6, label="rows")
above.set_ylabel("y")
above.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
for part in ("explained", "residual", "noise"):
    label, color = PARTS[part]
    value = np.sqrt(np.maximum(np.broadcast_to(getattr(prediction, part), prediction.mean.shape), 0))
    below.plot(
        grid[:, 0],
        value,
        color="#8a8a8a" if part == "noise" else color,
        lw=1.8,
        label=f"{label} ({part})" if part != "noise" else "noise",
    )
below.set(xlabel="x", ylabel="standard deviation", ylim=(0, None), xlim=(-1.5, 11))
below.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
plt.show()
