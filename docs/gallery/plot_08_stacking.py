"""
What the default is made of: a stack
====================================

``GPRegressor()`` trains GPs with and without trees in their mean, asks each about rows that it has not seen, and mixes them by the log
score of these rows. Here on scikit-learn's diabetes table.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes

import duogp
from duogp.plots import BLUE, GREEN, INK, ORANGE, STYLE, VERMILION

plt.rcParams.update(STYLE)
X, y = load_diabetes(return_X_y=True)
order = np.random.default_rng(0).permutation(len(y))
train, test = order[:340], order[340:]
model = duogp.GPRegressor(random_state=0).fit(X[train], y[train])
print(*model.reasons_, sep="\n")

# %%
# The weights, each member's own score on the test rows, and the density of one patient: the mixture has tails that no single
# Gaussian has.

stack = model.gp_
scores = {label: -member.log_density(X[test], y[test]).mean() for label, member in zip(stack.weights, stack.members)}
scores["the stack"] = -stack.log_density(X[test], y[test]).mean()

figure, (left, middle, right) = plt.subplots(1, 3, figsize=(10.5, 3.4), width_ratios=(1, 1, 1.3))
names = list(stack.weights)
place = np.arange(len(names))
left.barh(place, list(stack.weights.values()), color=BLUE, height=0.55)
left.set_yticks(place, names)
left.set(xlabel="weight", title="members")
left.invert_yaxis()
place = np.arange(len(scores))
middle.plot(list(scores.values()), place, "o", color=BLUE, ms=7)
middle.plot(scores["the stack"], place[-1], "o", color=VERMILION, ms=9)
middle.set_yticks(place, ["" for _ in names] + ["the stack"])
middle.set(xlabel="NLL of test rows", title="scores", ylim=(len(scores) - 0.5, -0.5))
middle.margins(x=0.3)
row = X[test][:1]
values = np.linspace(0, 340, 300)
for member, name, color in zip(stack.members, names, (GREEN, ORANGE, BLUE, INK)):
    density = np.exp(member.log_density(np.repeat(row, 300, 0), values))
    right.plot(values, density, color=color, lw=1.2, ls="--", label=name)
right.plot(values, np.exp(stack.log_density(np.repeat(row, 300, 0), values)), color=VERMILION, lw=1.8, label="the stack")
right.axvline(y[test][0], color=INK, lw=1)
right.annotate("observed", (y[test][0], right.get_ylim()[1]), xytext=(4, -9), textcoords="offset points", fontsize=8.5)
right.set(xlabel="disease progression", ylabel="density", title="one patient", ylim=(0, None))
right.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
plt.show()
