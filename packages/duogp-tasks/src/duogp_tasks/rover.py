"""Rover: a trajectory through obstacles from one corner to the other (Wang et al. 2018; MATH §7.2).

    control points p₁ … p_m in [−0.1, 1.1]²,  curve = scipy's cubic smoothing spline of them (`splprep`)
    c(p) = 20 [p in an obstacle or outside the unit square] + 0.05
    reward = 5 − ∫ c along the curve − 10 ‖first − start‖₁ − 10 ‖last − goal‖₁

The smoothing spline has default smoothing s = m − √(2m). Where a single cubic, fitted by least squares over
chord length, leaves no more than s, it is the answer of `splprep`. Thirty points cannot miss it: the squared
distances to their centre sum to 21.6 at most, and s = 22.3. So curves are fitted all at once; `splprep`
itself runs only where the cubic leaves more (rare, and only with few points). It refuses points that repeat
their predecessor; the cubic does not, so every point of the cube has a value.
"""

from __future__ import annotations

import numpy as np
from scipy.interpolate import splev, splprep

from duogp.bo.tasks import Floats, Task, box
from duogp.data.benchmark import data_root

START, GOAL = np.array([0.05, 0.05]), np.array([0.95, 0.95])
SAMPLES = 1000  # along the curve
COLLISION, TRAVEL, MISS = 20.0, 0.05, 10.0
#: Curves that are handled at once: a thousand samples of each must fit into the cache of a processor.
CHUNK = 64


class Rover(Task):
    """The 60-d task of 30 control points and the published map of 113 squares of side 0.05.

    ``size="small"``: 10 control points (20-d) and a map of 30 squares of side 0.1. ``noise``: standard
    deviation of Gaussian noise on the parameters (the original adds 1e-4). Without the data folder, and for
    the small task always, the map is generated: see `generated_map`.
    """

    optimum = 5.0  # nearly: even the straight way, were it free, would cost 0.06

    def __init__(self, size: str = "large", noise: float = 0.0, seed: int = 0) -> None:
        super().__init__(seed, noise)
        if size not in ("large", "small"):
            raise ValueError(f"size: expected 'large' or 'small', got {size!r}")
        large = size == "large"
        self.name, self.dims = ("rover", 60) if large else ("rover-small", 20)
        self.bounds = box(self.dims, -0.1, 1.1)
        count, self.side = (113, 0.05) if large else (30, 0.1)
        published = published_map() if large else None
        self.is_published = published is not None  # values on different maps must not be compared
        self.centres = generated_map(count, self.side) if published is None else published
        self._occupied = Occupancy(self.centres, self.side)

    def _evaluate(self, points: Floats) -> Floats:
        if self.noisy:  # in units of the cube
            points = points + 1.2 * self.noise * self._gaussian(len(points), self.dims)
        controls = points.reshape(len(points), -1, 2)
        chunks = [controls[i : i + CHUNK] for i in range(0, len(controls), CHUNK)]
        return np.concatenate([self.rewards(curves(chunk)) for chunk in chunks])

    def trajectory(self, x: Floats) -> Floats:
        """The curve [1000, 2] of one point of the cube, for a figure."""
        return curves(self._in_units(np.asarray(x)[None]).reshape(1, -1, 2))[0]

    def rewards(self, paths: Floats) -> Floats:
        """Rewards [n] of sampled curves [n, samples, 2]."""
        cost = COLLISION * self._occupied(paths) + TRAVEL
        step = np.sqrt((np.diff(paths, axis=1) ** 2).sum(-1))
        integral = (step * (cost[:, :-1] + cost[:, 1:])).sum(-1) / 2
        miss = np.abs(paths[:, 0] - START).sum(-1) + np.abs(paths[:, -1] - GOAL).sum(-1)
        rewards: Floats = 5.0 - integral - MISS * miss
        return rewards


class RoverSmall(Rover):
    """The 20-d task."""

    def __init__(self, noise: float = 0.0, seed: int = 0) -> None:
        super().__init__("small", noise, seed)


class Occupancy:
    """Whether points lie in one of many axis-parallel squares, half open [low, high), or outside [0, 1)².

    The edges of all squares cut the plane into cells that are wholly free or wholly occupied, so one table
    lookup replaces a comparison with every square.
    """

    def __init__(self, centres: Floats, side: float) -> None:
        low, high = centres - side / 2, centres + side / 2
        self._edges = [np.unique(np.concatenate([low[:, i], high[:, i], [0.0, 1.0]])) for i in range(2)]
        # Cell k of an axis is [edge k−1, edge k): tested at its lower edge. Cell 0 lies below all edges.
        x, y = (np.concatenate([[-np.inf], edges]) for edges in self._edges)
        table = ~(((x >= 0) & (x < 1))[:, None] & ((y >= 0) & (y < 1))[None, :])
        for (x0, y0), (x1, y1) in zip(low, high, strict=True):
            table |= ((x >= x0) & (x < x1))[:, None] & ((y >= y0) & (y < y1))[None, :]
        self._table = table

    def __call__(self, points: Floats) -> np.ndarray:
        i, j = (np.searchsorted(edges, points[..., k], side="right") for k, edges in enumerate(self._edges))
        return self._table[i, j]


def curves(controls: Floats) -> Floats:
    """Sampled smoothing splines [n, samples, 2] of control points [n, m, 2]."""
    n, m, _ = controls.shape
    chords = np.sqrt((np.diff(controls, axis=1) ** 2).sum(-1))
    u = np.concatenate([np.zeros((n, 1)), np.cumsum(chords, axis=1)], axis=1)
    length = u[:, -1:]
    u = np.where(length > 0, u / np.where(length > 0, length, 1.0), 0.0)
    # Least squares in Legendre polynomials of 2u − 1; the pseudo-inverse copes with points that coincide.
    basis = _legendre(2 * u - 1)
    coefficients = np.linalg.pinv(basis) @ controls
    left = ((basis @ coefficients - controls) ** 2).sum((1, 2))
    paths: Floats = _legendre(np.linspace(-1.0, 1.0, SAMPLES)) @ coefficients
    for i in np.flatnonzero(left > (m - np.sqrt(2 * m)) * (1 - 1e-6)):
        paths[i] = smoothing_spline(_apart(controls[i]))
    return paths


def smoothing_spline(control: Floats) -> Floats:
    """The plain routine for one curve: [m, 2] to [samples, 2]."""
    spline, _ = splprep(control.T, k=3)
    return np.stack(splev(np.linspace(0.0, 1.0, SAMPLES), spline), axis=-1)


def published_map() -> Floats | None:
    """Centres of the 113 squares in ``$DUOGP_DATA/bo/rover_obstacles.csv``; None where it is not there."""
    root = data_root()
    path = None if root is None else root / "bo" / "rover_obstacles.csv"
    return np.loadtxt(path, delimiter=",", skiprows=1) if path is not None and path.is_file() else None


def generated_map(count: int, side: float, seed: int = 0) -> Floats:
    """Centres drawn uniformly from the unit square, none whose square comes near the start or the goal.

    So is the published map: its squares overlap as those of independent uniform centres do (they cover 24 %
    of the unit square; 25 % expected) and leave both corners free.
    """
    random = np.random.default_rng(seed)
    centres: list[Floats] = []
    while len(centres) < count:
        centre = random.random(2)
        if min(np.abs(centre - START).max(), np.abs(centre - GOAL).max()) > side / 2 + 0.05:
            centres.append(centre)
    return np.stack(centres)


def _legendre(t: Floats) -> Floats:
    """The first four Legendre polynomials, [..., 4]."""
    return np.stack([np.ones_like(t), t, (3 * t**2 - 1) / 2, (5 * t**3 - 3 * t) / 2], axis=-1)


def _apart(control: Floats) -> Floats:
    """Control points without those that repeat their predecessor, which `splprep` refuses."""
    moved = np.abs(np.diff(control, axis=0)).max(1) > 0
    return control[np.concatenate([[True], moved])]
