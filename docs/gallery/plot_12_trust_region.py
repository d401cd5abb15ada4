"""
TuRBO: a trust region that moves and shrinks
============================================

Bayesian optimisation in a box around the best point. The box grows after successes, shrinks after failures,
and follows the best point. Here on Branin's function, which has three equal minima: TuRBO settles in one of
them.
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Rectangle

from duogp.bo import GPSurrogate, Turbo
from duogp.plots import BLUE, FAINT, INK, STYLE, VERMILION

plt.rcParams.update(STYLE)


def branin(u):
    """At points of the unit square, [n, 2]; smaller is better."""
    x, z = 15 * u[:, 0] - 5, 15 * u[:, 1]
    bend = z - 5.1 * x**2 / (4 * np.pi**2) + 5 * x / np.pi - 6
    return bend**2 + 10 * (1 - 1 / (8 * np.pi)) * np.cos(x) + 10


turbo = Turbo(2, GPSurrogate.of("exact"), batch_size=4, seed=1, initial=8)
points, values, boxes = [], [], []
for _ in range(12):
    proposal = turbo.ask(4)
    y = -branin(proposal.X)  # strategies maximise
    turbo.tell(proposal, y)
    points.append(proposal.X)
    values.append(-y)
    boxes.append((np.concatenate(points)[np.argmin(np.concatenate(values))], turbo.regions[0].length))
points, values = np.concatenate(points), np.concatenate(values)

# %%
# Left: the boxes of later batches, drawn square (the sides of the real ones follow the lengthscales), and
# all evaluations. Right: the best value so far; the minimum is 0.398.

across, up = np.meshgrid(np.linspace(0, 1, 200), np.linspace(0, 1, 200))
height = branin(np.column_stack([across.ravel(), up.ravel()])).reshape(across.shape)
figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.8), width_ratios=(1.15, 1))
left.contourf(across, up, np.log(height), levels=18, cmap="Greys_r", alpha=0.55)
for i, (centre, length) in enumerate(boxes[2::3]):
    corner = np.maximum(centre - length / 2, 0)
    far = np.minimum(centre + length / 2, 1)
    left.add_patch(Rectangle(corner, *(far - corner), fill=False, ec=BLUE, lw=1 + 0.5 * i))
left.scatter(
    *points.T, c=np.arange(len(points)), cmap="autumn_r", s=18, edgecolors=INK, linewidths=0.4, zorder=3
)
left.plot(*points[values.argmin()], "*", ms=14, color=VERMILION, mec="white", zorder=4)
left.set(
    xlabel="x₁",
    ylabel="x₂",
    title="evaluations (later ones darker) and trust regions",
    xlim=(0, 1),
    ylim=(0, 1),
)
best = np.minimum.accumulate(values)
right.step(np.arange(1, len(best) + 1), best - 0.397887, where="post", color=BLUE, lw=1.8)
right.set(xlabel="evaluations", ylabel="best value above the minimum", title="regret", yscale="log")
right.axvline(8, color=FAINT, lw=1)
right.annotate(
    "first design",
    (8, right.get_ylim()[1]),
    xytext=(4, -9),
    textcoords="offset points",
    fontsize=8.5,
    color="#6f6f6f",
)
plt.show()
