"""Modules of other libraries, evaluated without leading parameter dimensions."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call


class Foreign(nn.Module):
    """A module called once for each leading index that `numerics.parameters.batched` gave its parameters.

    Inputs are [*b, n, d] and outputs [*b, ...]; parameters are cast to the dtype of the inputs. Kernels and
    means of duogp broadcast instead of this loop.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.event_dims = {name: p.dim() for name, p in module.named_parameters()}

    @property
    def batch_shape(self) -> torch.Size:
        shapes = [p.shape[: p.dim() - self.event_dims[name]] for name, p in self.module.named_parameters()]
        return torch.broadcast_shapes(*shapes) if shapes else torch.Size()

    def forward(self, *inputs: Tensor) -> Tensor:
        dtype, batch = inputs[0].dtype, self.batch_shape
        parameters = {
            name: p.to(dtype) if p.is_floating_point() else p for name, p in self.module.named_parameters()
        }
        if not batch:
            return functional_call(self.module, parameters, inputs)
        # [*lead, *batch, n, d] → [*lead, B, n, d]: one call for each of the B models, all of lead in it.
        full = torch.broadcast_shapes(batch, *(x.shape[:-2] for x in inputs))
        lead, models = full[: len(full) - len(batch)], full[len(full) - len(batch) :]
        rows = [x.expand(*full, *x.shape[-2:]).flatten(len(lead), -3) for x in inputs]
        stacked = {
            name: p.expand(*models, *p.shape[len(batch) :]).flatten(0, len(batch) - 1)
            for name, p in parameters.items()
        }
        outputs = [
            functional_call(
                self.module,
                {name: p[i] for name, p in stacked.items()},
                tuple(x.select(len(lead), i) for x in rows),
            )
            for i in range(models.numel())
        ]
        return torch.stack(outputs, len(lead)).unflatten(len(lead), models)
