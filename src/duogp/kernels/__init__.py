"""Kernels k(x, x′): dense matrices, differentiable.

A kernel takes x [..., n, d] and x′ [..., m, d] to [..., n, m]; `diag` takes x to [..., n]. Kernels add and
multiply:

    kernel = Scale(RBF(3, lengthscale=0.5)) + Scale(Linear(3))
    K = kernel(x, x)  # [n, n]

`duogp.fit(X, y, kernel=...)` takes a kernel, or a text such as "rbf + linear".
"""

from __future__ import annotations

import copy
import difflib
import re
from typing import Any

from duogp.kernels.adapter import GPyTorchKernel, is_gpytorch_kernel
from duogp.kernels.base import Constant, FeatureMap, Kernel, Product, Scale, Sum
from duogp.kernels.deep_kernel import Deep, DeepKernel
from duogp.kernels.distance import squared_distance
from duogp.kernels.generalised import GeneralisedRBF, generalised_points
from duogp.kernels.linear import Linear
from duogp.kernels.stationary import (
    RBF,
    Hamming,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    RationalQuadratic,
    Stationary,
)
from duogp.kernels.tanimoto import Tanimoto
from duogp.kernels.warped import ActiveDims

KERNELS: dict[str, type[Kernel]] = {
    "rbf": RBF,
    "matern12": Matern12,
    "matern32": Matern32,
    "matern52": Matern52,
    "rq": RationalQuadratic,
    "periodic": Periodic,
    "linear": Linear,
    "constant": Constant,
    "hamming": Hamming,
    "generalisedrbf": GeneralisedRBF,
    "tanimoto": Tanimoto,
}

__all__ = [
    "KERNELS",
    "RBF",
    "ActiveDims",
    "Constant",
    "Deep",
    "DeepKernel",
    "FeatureMap",
    "GPyTorchKernel",
    "GeneralisedRBF",
    "Hamming",
    "Kernel",
    "Linear",
    "Matern12",
    "Matern32",
    "Matern52",
    "Periodic",
    "Product",
    "RationalQuadratic",
    "Scale",
    "Stationary",
    "Sum",
    "Tanimoto",
    "generalised_points",
    "make_kernel",
    "squared_distance",
]


def make_kernel(spec: str | Kernel | Any, dims: int, *, ard: bool = True, scale: bool = True) -> Kernel:
    """A kernel from its name ("matern52", "Matern-5/2", "rbf + linear"), or a copy of a kernel object.

    A gpytorch kernel becomes a `GPyTorchKernel`.
    """
    if isinstance(spec, Kernel):
        return copy.deepcopy(spec)
    if is_gpytorch_kernel(spec):
        return GPyTorchKernel(copy.deepcopy(spec))
    if isinstance(spec, str) and "+" in spec:
        return Sum(*(make_kernel(part, dims, ard=ard, scale=scale) for part in spec.split("+")))
    kind = KERNELS.get(re.sub(r"[^a-z0-9]", "", spec.lower())) if isinstance(spec, str) else None
    if kind is None:
        near = difflib.get_close_matches(str(spec).lower(), KERNELS, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"unknown kernel {spec!r}{hint} The names are {', '.join(KERNELS)}")
    # Some kernels have no parameter per column.
    kernel = kind() if kind in (Constant, Tanimoto) else kind(dims, ard=ard)
    return Scale(kernel) if scale else kernel
