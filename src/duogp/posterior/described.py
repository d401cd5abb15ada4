"""What a model has learned, as plain numbers under the names of the mathematics."""

from __future__ import annotations

from typing import Any

from duogp.models.model import Model
from duogp.numerics.parameters import Positive


def described(model: Model) -> dict[str, Any]:
    """Learned values in scaled units: noise variance, kernels, prior mean."""
    basis = model.basis
    kernel = plain_description(basis.kernel.describe())
    likelihood = model.likelihood
    out: dict[str, Any] = {
        name: _squeeze(part().tolist())
        for name, part in likelihood.named_modules()
        if isinstance(part, Positive)
    }
    out["kernel"] = kernel
    out["lengthscale"] = first_value(kernel, "lengthscale")
    kernels = basis.kernels()
    if "mean" in kernels:
        out["mean_kernel"] = plain_description(kernels["mean"].describe())
        out["lengthscale_mean"] = first_value(out["mean_kernel"], "lengthscale")
        out["lengthscale_covariance"] = out.pop("lengthscale")
    out |= {name: _squeeze(value[0].tolist()) for name, value in basis.hyperparameters().items()}
    out["mean"] = {
        name: _squeeze(p.tolist()) for name, p in model.mean.named_parameters() if p.numel() <= 1000
    }
    return out


def _squeeze(value: Any) -> Any:
    """Nested lists without their leading dimensions of size one."""
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    return value


def plain_description(value: Any) -> Any:
    """What a kernel says of itself, without leading dimensions of size one."""
    if isinstance(value, dict):
        return {k: plain_description(v) for k, v in value.items()}
    return _squeeze(value) if isinstance(value, list) and value and not isinstance(value[0], dict) else value


def first_value(description: Any, key: str) -> Any:
    """The first value of that name in a nested description."""
    if isinstance(description, dict):
        if key in description:
            return description[key]
        description = list(description.values())
    if isinstance(description, list):
        for part in description:
            if isinstance(part, dict | list) and (found := first_value(part, key)) is not None:
                return found
    return None
