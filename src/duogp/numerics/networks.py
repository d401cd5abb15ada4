"""Multilayer perceptrons whose parameters have leading dimensions [replicate, latent].

    h₀ = x,   h_{i+1} = activation(norm(h_i W_i + b_i)),   the last layer plain

The features of a row or an inducing point do not depend on the rest of the batch, which leaves these
normalisations:

    layer     every row by its own mean and variance
    spectral  every weight matrix divided by its largest singular value where that exceeds one: no direction
              is stretched (power iteration, continued from step to step)
    batch     by running moments of the data, constants within a step: `observe` updates them from a batch of
              data before the step, never from inducing points
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

Activation = Literal["relu", "silu", "tanh", "gelu"]
Normalisation = Literal["none", "layer", "spectral", "batch"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "silu": functional.silu,
    "tanh": torch.tanh,
    "gelu": functional.gelu,
}


class Linear(nn.Module):
    """x W + b with W [*b, in, out], initialised like torch's linear layers."""

    def __init__(self, inputs: int, outputs: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        bound = 1 / math.sqrt(max(inputs, 1))

        def uniform(*shape: int) -> Tensor:
            return bound * (2 * torch.rand(*shape, generator=generator, dtype=torch.float64) - 1)

        self.weight = nn.Parameter(uniform(inputs, outputs))
        self.bias = nn.Parameter(uniform(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.to(x.dtype) + self.bias.to(x.dtype).unsqueeze(-2)


class SpectralLinear(Linear):
    """x W / max(1, σ(W)) + b, σ the largest singular value."""

    u: Tensor
    batched_buffers = replicate_buffers = ("u",)

    def __init__(self, inputs: int, outputs: int, generator: torch.Generator | None = None) -> None:
        super().__init__(inputs, outputs, generator)
        start = torch.randn(outputs, generator=generator, dtype=torch.float64)
        self.register_buffer("u", start / start.norm())

    def forward(self, x: Tensor) -> Tensor:
        W = self.weight.double()
        if self.training:
            with torch.no_grad():
                v = functional.normalize((W @ self.u.unsqueeze(-1)).squeeze(-1), dim=-1)
                self.u.copy_(functional.normalize((W.mT @ v.unsqueeze(-1)).squeeze(-1), dim=-1))
        sigma = (W @ self.u.clone().unsqueeze(-1)).norm(dim=(-2, -1), keepdim=True)
        return x @ (W / sigma.clamp_min(1.0)).to(x.dtype) + self.bias.to(x.dtype).unsqueeze(-2)


class _Affine(nn.Module):
    """A learned scale and shift of each feature."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width, dtype=torch.float64))
        self.shift = nn.Parameter(torch.zeros(width, dtype=torch.float64))


class LayerNorm(_Affine):
    """Every row by its own mean and variance."""

    def forward(self, h: Tensor) -> Tensor:
        h = functional.layer_norm(h, h.shape[-1:])
        return h * self.scale.to(h.dtype).unsqueeze(-2) + self.shift.to(h.dtype).unsqueeze(-2)


class RunningNorm(_Affine):
    """By running moments of the data; the same function for a row and for an inducing point."""

    MOMENTUM = 0.05
    mean: Tensor
    variance: Tensor
    observed: Tensor
    batched_buffers = replicate_buffers = ("mean", "variance", "observed")

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.register_buffer("mean", torch.zeros(width, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(width, dtype=torch.float64))
        self.register_buffer("observed", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def observe(self, h: Tensor) -> None:
        """Update the running moments from activations [*b, n, width]."""
        rows = h.double()
        first = (self.observed == 0).unsqueeze(-1)
        for running, new in ((self.mean, rows.mean(-2)), (self.variance, rows.var(-2, correction=0))):
            running.copy_(torch.where(first, new, running + self.MOMENTUM * (new - running)))
        self.observed.add_(1)

    def forward(self, h: Tensor) -> Tensor:
        gain = self.scale / (self.variance + 1e-5).sqrt()
        shift = self.shift - gain * self.mean
        return h * gain.to(h.dtype).unsqueeze(-2) + shift.to(h.dtype).unsqueeze(-2)


class MLP(nn.Module):
    """A multilayer perceptron; ``widths``: of all layers after the input, the output included.

    Dropout acts in training only.
    """

    def __init__(
        self,
        inputs: int,
        widths: Sequence[int],
        *,
        activation: Activation = "relu",
        normalisation: Normalisation = "none",
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if not widths or any(int(w) < 1 for w in widths):
            raise ValueError(f"widths must be positive integers, at least one, got {list(widths)}")
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}")
        if normalisation not in get_args(Normalisation):
            names = ", ".join(get_args(Normalisation))
            raise ValueError(f"normalisation must be one of {names}, got {normalisation!r}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {dropout}")
        self.inputs, self.outputs = inputs, int(widths[-1])
        self.activation, self.normalisation, self.dropout = activation, normalisation, float(dropout)
        linear = SpectralLinear if normalisation == "spectral" else Linear
        self.widths = [int(w) for w in widths]
        sizes = [inputs, *self.widths]
        self.layers = nn.ModuleList(linear(a, b, generator) for a, b in itertools.pairwise(sizes))
        norm = {"layer": LayerNorm, "batch": RunningNorm}.get(normalisation)
        self.norms = nn.ModuleList(norm(w) for w in sizes[1:-1]) if norm else None

    def config(self) -> dict[str, Any]:
        """Arguments of the constructor, for saved models."""
        look = {"activation": self.activation, "normalisation": self.normalisation, "dropout": self.dropout}
        return {"inputs": self.inputs, "widths": self.widths, **look}

    @property
    def batch_shape(self) -> torch.Size:
        """The leading shape that `parameters.batched` gave the parameters."""
        first = self.layers[0]
        assert isinstance(first, Linear)
        return first.weight.shape[:-2]

    def forward(self, x: Tensor, thin: Callable[[int, Tensor], Tensor] | None = None) -> Tensor:
        """Outputs [*b, n, outputs]; ``thin(i, h)`` replaces the output h of hidden layer i."""
        return self._run(x, thin=thin)

    @torch.no_grad()
    def observe(self, x: Tensor) -> None:
        """Update the running moments of "batch" normalisation from a batch x [..., n, d]."""
        if self.normalisation == "batch":
            self._run(x, observe=True)

    def _run(
        self, x: Tensor, *, observe: bool = False, thin: Callable[[int, Tensor], Tensor] | None = None
    ) -> Tensor:
        h = x
        for i, layer in enumerate(self.layers):
            h = layer(h)
            if i == len(self.layers) - 1:
                break
            if self.norms is not None:
                norm = self.norms[i]
                if observe and isinstance(norm, RunningNorm):
                    norm.observe(h)
                h = norm(h)
            h = ACTIVATIONS[self.activation](h)
            if self.dropout:
                h = functional.dropout(h, self.dropout, self.training and not observe)
            if thin is not None:
                h = thin(i, h)
        return h
