"""
What the default is made of: a stack
====================================

``GPRegressor()`` trains GPs with and without trees in their mean, asks each about rows that it has not
seen, and mixes them by the log score of these rows. Targets that are positive and skewed, such as prices
and durations, are tried on the log scale too.
"""

import matplotlib.pyplot as plt
import numpy as np

import duogp
from duogp.plots import BLUE, GREEN, INK, ORANGE, PURPLE, STYLE, VERMILION

plt.rcParams.update(STYLE)
rng = np.random.default_rng(0)
X = rng.uniform(-2, 2, (500, 3))
level = np.where(X[:, 0] > 0.3, 1.2, 0.0) + 0.6 * np.sin(3 * X[:, 1])  # a step and a wave
y = np.exp(level + 0.15 * rng.standard_t(4, 500))
train, test = np.arange(300), np.arange(300, 500)
model = duogp.GPRegressor(random_state=0).fit(X[train], y[train])
print(*model.reasons_, sep="\n")

# %%
# The weights, each member's own score on the test rows, and the density of one row.

stack = model.gp_
scores = {
    label: -member.log_density(X[test], y[test]).mean() for label, member in zip(stack.weights, stack.members)
}
scores["the stack"] = -stack.log_density(X[test], y[test]).mean()

figure, (left, middle, right) = plt.subplots(1, 3, figsize=(10.8, 3.6), width_ratios=(1, 1, 1.4))
names = list(stack.weights)
place = np.arange(len(names))
left.barh(place, list(stack.weights.values()), color=BLUE, height=0.55)
left.set_yticks(place, names)
left.set(xlabel="weight", title="members")
left.invert_yaxis()
place = np.arange(len(scores))
middle.plot(list(scores.values()), place, "o", color=BLUE, ms=7)
middle.plot(scores["the stack"], place[-1], "o", color=VERMILION, ms=9)
middle.set_yticks(place, [*names, "the stack"])
middle.set(xlabel="NLL of test rows", title="scores", ylim=(len(scores) - 0.5, -0.5))
middle.margins(x=0.3)
which = 3
row = X[test][which : which + 1]
values = np.linspace(0, 2.2, 300)
for member, name, color in zip(stack.members, names, (GREEN, ORANGE, BLUE, PURPLE)):
    density = np.exp(member.log_density(np.repeat(row, 300, 0), values))
    right.plot(values, density, color=color, lw=1.2, ls="--", label=name)
right.plot(
    values,
    np.exp(stack.log_density(np.repeat(row, 300, 0), values)),
    color=VERMILION,
    lw=1.8,
    label="the stack",
)
right.axvline(y[test][which], color=INK, lw=1)
right.annotate(
    "observed",
    (y[test][which], right.get_ylim()[1]),
    xytext=(4, -9),
    textcoords="offset points",
    fontsize=8.5,
)
right.set(xlabel="y", ylabel="density", title="one row", ylim=(0, None))
right.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
plt.show()
