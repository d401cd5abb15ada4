"""Tasks that need nothing beyond numpy: two textbook functions, negated, and pushing discs on a table."""

from __future__ import annotations

import numpy as np

from duogp.bo.tasks.base import Floats, Task, at_least, box

# Hartmann's function: weights α [4], sharpness A [4, 6], centres P [4, 6].
_WEIGHTS = np.array([1.0, 1.2, 3.0, 3.2])
_SHARPNESS = np.array(
    [
        [10.0, 3.0, 17.0, 3.5, 1.7, 8.0],
        [0.05, 10.0, 17.0, 0.1, 8.0, 14.0],
        [3.0, 3.5, 1.7, 10.0, 17.0, 8.0],
        [17.0, 8.0, 0.05, 10.0, 0.1, 14.0],
    ]
)
_CENTRES = 1e-4 * np.array(
    [
        [1312.0, 1696.0, 5569.0, 124.0, 8283.0, 5886.0],
        [2329.0, 4135.0, 8307.0, 3736.0, 1004.0, 9991.0],
        [2348.0, 1451.0, 3522.0, 2883.0, 3047.0, 6650.0],
        [4047.0, 8828.0, 8732.0, 5743.0, 1091.0, 381.0],
    ]
)

# Pushing: places of discs and goals, radii, time.
DISCS = np.array([[0.0, 2.0], [0.0, -2.0]])
GOALS = np.array([[4.0, 3.5], [-4.0, -3.5]])
HAND, DISC = 0.7, 1.0
STEP, DURATION = 0.1, 4.0


class Hartmann6(Task):
    """Σᵢ αᵢ exp(−Σⱼ Aᵢⱼ (xⱼ − Pᵢⱼ)²) on [0, 1]⁶; six local maxima."""

    name, dims, bounds = "hartmann6", 6, box(6, 0.0, 1.0)
    optimum = 3.3223680114155147

    def __init__(self, noise: float = 0.0, seed: int = 0) -> None:
        super().__init__(seed, noise)

    def _evaluate(self, points: Floats) -> Floats:
        squared = (_SHARPNESS * (points[:, None, :] - _CENTRES) ** 2).sum(-1)
        values: Floats = np.exp(-squared) @ _WEIGHTS
        return values + self.noise * self._gaussian(len(points)) if self.noisy else values


class Ackley(Task):
    """20 exp(−0.2 rms(x)) + exp(mean cos 2πx) − 20 − e on [−5, 10]^d: the maximum, 0, is off the middle."""

    name, optimum = "ackley", 0.0

    def __init__(self, dims: int = 10, noise: float = 0.0, seed: int = 0) -> None:
        super().__init__(seed, noise)
        at_least("dims", dims, 1)
        self.dims, self.bounds = dims, box(dims, -5.0, 10.0)

    def _evaluate(self, points: Floats) -> Floats:
        distance = np.sqrt((points**2).mean(-1))
        ripples = np.cos(2 * np.pi * points).mean(-1)
        values: Floats = 20 * np.exp(-0.2 * distance) + np.exp(ripples) - 20 - np.e
        return values + self.noise * self._gaussian(len(points)) if self.noisy else values


class Push(Task):
    """Two hands push two discs to their goals on a table: a noisy task in the style of robot pushing.

    14-d: x, y, velocity x, velocity y, turn rate, delay and duration of each hand. Discs in the way of a hand
    are displaced quasi-statically, and displace each other. The reward is the decrease of the two distances
    to the goals, summed. Noise is added to the places where the hands start, so its effect depends on the
    point: none where nothing is touched, much where a push is glancing.
    """

    name, dims = "push", 14
    bounds = np.array([[-5.0, -5.0, -3.0, -3.0, -1.0, 0.0, 0.2] * 2, [5.0, 5.0, 3.0, 3.0, 1.0, 2.0, 3.0] * 2])

    def __init__(self, noise: float = 0.05, seed: int = 0) -> None:
        super().__init__(seed, noise)

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
            moving = ((now >= delay) & (now < delay + duration))[..., None]
            places += STEP * velocities * moving
            x, y = velocities[..., 0], velocities[..., 1]
            turned = np.stack([cos * x - sin * y, sin * x + cos * y], -1)
            velocities = np.where(moving, turned, velocities)
            for hand in range(2):
                discs += _displacement(places[:, hand, None, :], discs, HAND + DISC)
            discs += _displacement(discs[:, ::-1, :], discs, 2 * DISC) / 2  # each gives way by half
        gained = np.linalg.norm(DISCS - GOALS, axis=-1) - np.linalg.norm(discs - GOALS, axis=-1)
        return gained.sum(-1)


def _displacement(pusher: Floats, discs: Floats, contact: float) -> Floats:
    """Smallest moves [n, 2, 2] after which discs are at least `contact` away from the pushers."""
    between = discs - pusher
    distance = np.linalg.norm(between, axis=-1, keepdims=True)
    direction = np.where(distance > 0, between / np.where(distance > 0, distance, 1.0), [1.0, 0.0])
    moved: Floats = direction * np.maximum(contact - distance, 0.0)
    return moved
