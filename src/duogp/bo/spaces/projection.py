"""The values nearest to given ones that satisfy linear constraints: a mixed-integer linear program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from duogp.bo.candidates import Floats
from duogp.bo.spaces.parameters import Integer, Linear, Numeric

#: Distances from the border of a constraint, relative to its largest term, that are tried in turn.
MARGINS = (1e-8, 0.0)


def nearest(
    values: Floats, numbers: Mapping[str, Numeric], constraints: Sequence[Linear], magnitudes: Sequence[float]
) -> Floats | None:
    """Valid values of parameters [k] with the least sum of distances to the given ones, or None.

    Distances are in shares of the range of a parameter. ``magnitudes``: the largest term of each constraint.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    low = np.array([p.low for p in numbers.values()], dtype=np.float64)
    reach = np.array([p.high for p in numbers.values()], dtype=np.float64) - low
    whole = np.array([isinstance(p, Integer) for p in numbers.values()])
    unit = np.where(whole, 1.0, reach)  # variables are (value − low) / unit: integers stay integers
    top, start = reach / unit, (values - low) / unit
    n = len(numbers)
    # minimise Σ t / top over z and t with |z − start| ≤ t
    far = np.block([[np.eye(n), -np.eye(n)], [-np.eye(n), -np.eye(n)]])
    apart = LinearConstraint(far, -np.inf, np.concatenate([start, -start]))
    order = {name: i for i, name in enumerate(numbers)}
    for margin in MARGINS:
        rows = [apart]
        for c, magnitude in zip(constraints, magnitudes, strict=True):
            weights = np.zeros(n)
            for name, weight in c.weights.items():
                weights[order[name]] = weight
            size = max(magnitude, 1e-300)
            line = np.concatenate([weights * unit, np.zeros(n)]) / size
            bound = (c.bound - weights @ low) / size
            inside = margin if c.sign != "==" else 0.0
            lower = -np.inf if c.sign == "<=" else bound + inside
            upper = np.inf if c.sign == ">=" else bound - inside
            rows.append(LinearConstraint(line, lower, upper))
        found = milp(
            np.concatenate([np.zeros(n), 1.0 / top]),
            integrality=np.concatenate([whole, np.zeros(n)]),
            bounds=Bounds(np.zeros(2 * n), np.concatenate([top, np.full(n, np.inf)])),
            constraints=rows,
        )
        if found.x is not None:
            moved = low + unit * found.x[:n]
            return np.array(
                [p._valid(np.array([v]))[0] for p, v in zip(numbers.values(), moved, strict=True)]
            )
    return None
