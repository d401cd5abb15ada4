"""Two hands push two discs to their goals on a table: a noisy task in the style of robot pushing.

Each hand has seven parameters: where it starts (2), its velocity (2), how fast it turns, when it starts to
move and for how long. Discs that a hand runs into are shoved out of its way, quasi-statically, and shove each
other. The reward is by how much the two distances to the goals shrink, together. Noise disturbs where the
hands start, so its effect depends on the point: none where nothing is touched, much where a push is glancing.
"""

from __future__ import annotations

import numpy as np

from duogp.bo.tasks.base import Floats, Task, at_least

DISCS = np.array([[0.0, 2.0], [0.0, -2.0]])
GOALS = np.array([[4.0, 3.5], [-4.0, -3.5]])
HAND, DISC = 0.7, 1.0  # radii
STEP, DURATION = 0.1, 4.0  # of the simulation
_LOW = [-5.0, -5.0, -3.0, -3.0, -1.0, 0.0, 0.2]
_HIGH = [5.0, 5.0, 3.0, 3.0, 1.0, 2.0, 3.0]


class Push(Task):
    """14-d: x, y, velocity x, velocity y, turn rate, delay and duration of each hand."""

    name = "push"
    dims = 14

    def __init__(self, noise: float = 0.05, seed: int = 0) -> None:
        super().__init__(seed)
        at_least("noise", noise, 0)
        self.bounds = np.array([_LOW * 2, _HIGH * 2])
        self.noise, self.noisy = noise, noise > 0

    def _evaluate(self, points: Floats) -> Floats:
        hands = points.reshape(-1, 2, 7)
        places, velocities = hands[..., 0:2].copy(), hands[..., 2:4].copy()
        turn, delay, duration = hands[..., 4], hands[..., 5], hands[..., 6]
        if self.noisy:
            places += self.noise * self._gaussian(len(points), 2, 2)
        cos, sin = np.cos(STEP * turn), np.sin(STEP * turn)
        discs = np.broadcast_to(DISCS, (len(points), 2, 2)).copy()
        for step in range(round(DURATION / STEP)):
            now = step * STEP
            moving = (now >= delay) & (now < delay + duration)
            places += STEP * velocities * moving[..., None]
            x, y = velocities[..., 0], velocities[..., 1]
            velocities = np.where(
                moving[..., None], np.stack([cos * x - sin * y, sin * x + cos * y], -1), velocities
            )
            for hand in range(2):
                discs += _shove(places[:, hand, None, :], discs, HAND + DISC)
            apart = _shove(discs[:, ::-1, :], discs, 2 * DISC)  # each gives way by half
            discs += apart / 2
        gained = np.linalg.norm(DISCS - GOALS, axis=-1) - np.linalg.norm(discs - GOALS, axis=-1)
        return gained.sum(-1)


def _shove(pusher: Floats, discs: Floats, contact: float) -> Floats:
    """How far discs [n, 2, 2] must move to be `contact` away from the pushers."""
    between = discs - pusher
    distance = np.linalg.norm(between, axis=-1, keepdims=True)
    direction = np.where(distance > 0, between / np.where(distance > 0, distance, 1.0), [1.0, 0.0])
    moved: Floats = direction * np.maximum(contact - distance, 0.0)
    return moved
