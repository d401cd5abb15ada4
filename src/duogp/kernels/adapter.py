"""Any gpytorch kernel as one of ours (gpytorch itself is never imported here)."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn

from duogp.kernels.base import Kernel
from duogp.kernels.foreign import Foreign


def is_gpytorch_kernel(value: object) -> bool:
    """Whether an object is a gpytorch kernel; nobody holds one without having imported gpytorch."""
    gpytorch = sys.modules.get("gpytorch")
    return gpytorch is not None and isinstance(value, gpytorch.kernels.Kernel)


class GPyTorchKernel(Kernel):
    """A gpytorch kernel, evaluated densely.

    Leading dimensions given by `numerics.parameters.batched` are looped over; a kernel with a gpytorch batch
    shape of its own is refused. It cannot be captured in a CUDA graph (gpytorch waits for the device) and has
    no pathwise samples.
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
        return self.dense.module.kernel

    @property
    def batch_shape(self) -> torch.Size:
        return self.dense.batch_shape

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return self.dense(x1, x2)

    def diag(self, x: Tensor) -> Tensor:
        return self.dense(x)

    def settings(self) -> dict[str, Any]:
        return {"of": type(self.gpytorch_kernel).__name__}

    def describe(self) -> dict[str, Any]:
        values = {
            name: (p if constraint is None else constraint.transform(p)).detach().tolist()
            for name, p, constraint in self.gpytorch_kernel.named_parameters_and_constraints()
        }
        return {
            **super().describe(),
            "parameters": {name.replace("raw_", ""): v for name, v in values.items()},
        }


class _Dense(nn.Module):
    """The matrix for two inputs, its diagonal for one."""

    def __init__(self, kernel: Any) -> None:
        super().__init__()
        self.kernel = kernel

    def forward(self, x1: Tensor, x2: Tensor | None = None) -> Tensor:
        return self.kernel(x1, diag=True) if x2 is None else self.kernel(x1, x2).to_dense()
