"""gpytorch kernels as kernels of duogp; gpytorch itself is never imported here."""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor, nn

from duogp.kernels.base import Kernel
from duogp.kernels.foreign import Foreign


def is_gpytorch_kernel(value: object) -> bool:
    """Whether an object is a gpytorch kernel, which cannot exist before gpytorch was imported."""
    gpytorch = sys.modules.get("gpytorch")
    return gpytorch is not None and isinstance(value, gpytorch.kernels.Kernel)


class GPyTorchKernel(Kernel):
    """A gpytorch kernel, evaluated densely.

    Leading dimensions given by `numerics.parameters.batched` are looped over; a gpytorch batch shape is
    refused. It cannot be captured in a CUDA graph (gpytorch synchronises) and has no pathwise samples.
    """

    def __init__(self, kernel: Any) -> None:
        super().__init__()
        if not is_gpytorch_kernel(kernel):
            raise TypeError(f"GPyTorchKernel wraps a gpytorch kernel, got {type(kernel).__name__}")
        if len(kernel.batch_shape) > 0:
            raise ValueError(
                f"{type(kernel).__name__} has the gpytorch batch shape {tuple(kernel.batch_shape)}: "
                "construct it without one; duogp adds leading dimensions itself (numerics.parameters.batched)"
            )
        self.dense = Foreign(_Dense(kernel))

    @property
    def gpytorch_kernel(self) -> Any:
        """The kernel of gpytorch inside."""
        return self.dense.module.kernel

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return self.dense(x1, x2)

    def diag(self, x: Tensor) -> Tensor:
        return self.dense(x)

    def config(self) -> dict[str, Any]:
        """Arguments of the constructor, for saving."""
        return {"kernel": self.gpytorch_kernel}

    def settings(self) -> dict[str, Any]:
        return {"of": type(self.gpytorch_kernel).__name__}

    def describe(self) -> dict[str, Any]:
        values = {
            name: (p if constraint is None else constraint.transform(p)).detach().tolist()
            for name, p, constraint in self.gpytorch_kernel.named_parameters_and_constraints()
        }
        parameters = {name.replace("raw_", ""): v for name, v in values.items()}
        return {**super().describe(), "parameters": parameters}


class _Dense(nn.Module):
    """The dense matrix of a gpytorch kernel for two inputs, its diagonal for one."""

    def __init__(self, kernel: Any) -> None:
        super().__init__()
        self.kernel = kernel

    def forward(self, x1: Tensor, x2: Tensor | None = None) -> Tensor:
        return self.kernel(x1, diag=True) if x2 is None else self.kernel(x1, x2).to_dense()
