"""
Regions of classes, and where nothing is known
==============================================

Three classes on a plane. A classifier that only gives labels is silent about two questions: where do
classes overlap, and where are there no data? The entropy of the probabilities answers the first, the
residual variance of the latent functions the second.
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap

import duogp
from duogp.plots import BLUE, GREEN, INK, STYLE, VERMILION

plt.rcParams.update(STYLE)
rng = np.random.default_rng(0)
centres = {"a": (-1.2, 0.2), "b": (1.0, 0.9), "c": (0.6, -1.1)}
X = np.concatenate([rng.normal(centre, 0.6, (120, 2)) for centre in centres.values()])
labels = np.repeat(list(centres), 120)
gp = duogp.fit(X, labels, "svgp", likelihood="softmax", num_inducing=30, steps=250, random_state=0)

# %%
# Left: the most probable class. Middle: entropy, high on the borders. Right: the share of the latent
# variance that the inducing points do not explain, high far from the rows, also where the label seems
# certain.

across, up = np.meshgrid(np.linspace(-4, 4, 90), np.linspace(-4, 4, 90))
grid = np.column_stack([across.ravel(), up.ravel()])
prediction = gp.predict(grid)
probabilities = gp.predict_proba(grid)
residual = np.asarray(prediction.residual).reshape(len(grid), -1).mean(1)
figure, panels = plt.subplots(1, 3, figsize=(10.6, 3.6), sharey=True)
colors = (BLUE, VERMILION, GREEN)
panels[0].contourf(
    across,
    up,
    probabilities.argmax(1).reshape(across.shape),
    levels=[-0.5, 0.5, 1.5, 2.5],
    cmap=ListedColormap(colors),
    alpha=0.3,
)
entropy = panels[1].contourf(
    across, up, np.asarray(prediction.entropy).reshape(across.shape), levels=12, cmap="Blues"
)
far = panels[2].contourf(
    across,
    up,
    (residual / residual.max()).reshape(across.shape),
    levels=np.linspace(0, 1, 11),
    cmap="Oranges",
)
for name, color in zip(centres, colors):
    for ax, alpha in zip(panels, (0.9, 0.5, 0.5)):
        ax.plot(*X[labels == name].T, ".", ms=4, color=color, alpha=alpha)
    panels[0].annotate(name, centres[name], fontsize=15, weight="bold", color=INK, ha="center", va="center")
figure.colorbar(entropy, ax=panels[1], label="nats", shrink=0.85)
figure.colorbar(far, ax=panels[2], label="of the largest", shrink=0.85)
for ax, title in zip(
    panels, ("most probable class", "entropy: classes overlap", "residual: far from the data")
):
    ax.set(title=title, xlabel="x₁", xlim=(-4, 4), ylim=(-4, 4))
panels[0].set_ylabel("x₂")
plt.show()
