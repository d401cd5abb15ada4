"""The networks behind the two baselines, trained as one module whose parameters lead with [members].

    deep ensemble  E networks that differ in their first weights and in the order of their minibatches
                   (Lakshminarayanan, Pritzel, Blundell 2017); a pass for each of them
    MC dropout     one network, thinned at random in training and at prediction (Gal, Ghahramani 2016)

Dropout acts on the output of every hidden layer. In training each row of each step has a mask of its own. At
prediction there are S masks, drawn once: a pass is then one function of x, and the prediction of a row does
not depend on the other rows or on earlier calls.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from duogp.baselines.heads import Head, log_mean_exp
from duogp.numerics.networks import MLP, Activation, Normalisation
from duogp.numerics.parameters import batched

#: Masks used on validation rows during training; all of them would cost more than the epoch before.
VALIDATION_PASSES = 10


class Committee(nn.Module, ABC):
    """Networks of one shape whose predictions are mixed; ``members`` are trained side by side."""

    num_passes: int  # S, the number of networks that a prediction mixes

    def __init__(
        self,
        inputs: int,
        widths: Sequence[int],
        head: Head,
        seeds: Sequence[int],
        *,
        activation: Activation = "silu",
        normalisation: Normalisation = "none",
    ) -> None:
        super().__init__()
        self.widths = tuple(int(w) for w in widths)
        self.members = self.num_passes = len(seeds)
        sizes = [*self.widths, head.width]
        new = partial(MLP, inputs, sizes, activation=activation, normalisation=normalisation)
        self.net = stacked([new(generator=torch.Generator().manual_seed(seed)) for seed in seeds])
        self.head = batched(head, (self.members,))

    @abstractmethod
    def forward(self, x: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Raw outputs [members, n, width] of every member's own rows [members, n, d], in training."""

    @abstractmethod
    def passes(self, x: Tensor) -> Tensor:
        """Raw outputs [S, n, width] at rows [n, d], for prediction."""

    @abstractmethod
    def scores(self, x: Tensor, y: Tensor) -> Tensor:
        """log density of validation rows, x [n, d] and y [outputs, n], under every member: [members, n]."""

    def num_parameters(self) -> int:
        """Numbers that are learned, of all members together."""
        return sum(p.numel() for p in self.parameters())


class DeepEnsemble(Committee):
    """E networks, one seed each; a member does not depend on the others."""

    def forward(self, x: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        self.net.observe(x)
        return self.net(x)

    def passes(self, x: Tensor) -> Tensor:
        return self.net(x.unsqueeze(0))

    def scores(self, x: Tensor, y: Tensor) -> Tensor:
        return self.head.log_prob(self.passes(x), y)


class MCDropout(Committee):
    """One network, and S masks on the outputs of its hidden layers."""

    def __init__(
        self,
        inputs: int,
        widths: Sequence[int],
        head: Head,
        seed: int,
        *,
        dropout: float = 0.05,
        passes: int = 50,
        **look: Any,
    ) -> None:
        super().__init__(inputs, widths, head, [seed], **look)
        self.dropout, self.num_passes = dropout, passes
        generator = torch.Generator().manual_seed(seed + 1)  # not the stream that the weights came from
        for i, width in enumerate(self.widths):
            self.register_buffer(f"mask{i}", drop(torch.ones(passes, 1, width), dropout, generator))

    def forward(self, x: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        self.net.observe(x)
        return self.net(x, lambda i, h: drop(h, self.dropout, generators[0]))

    def passes(self, x: Tensor) -> Tensor:
        return self._masked(x, self.num_passes)

    def scores(self, x: Tensor, y: Tensor) -> Tensor:
        raw = self._masked(x, VALIDATION_PASSES)
        return log_mean_exp(self.head.log_prob(raw, y)).unsqueeze(0)

    def _masked(self, x: Tensor, most: int) -> Tensor:
        return self.net(x.unsqueeze(0), lambda i, h: h * self.get_buffer(f"mask{i}")[:most].to(h.dtype))


def drop(h: Tensor, rate: float, generator: torch.Generator) -> Tensor:
    """h [...], each entry set to 0 with probability ``rate``, else divided by 1 − rate: the mean stays."""
    keep = torch.rand(h.shape, generator=generator, device=h.device, dtype=torch.float32) >= rate
    return h * keep / (1 - rate)


def stacked(nets: Sequence[MLP]) -> MLP:
    """Networks of one shape as one whose parameters and buffers lead with [members]."""
    out = batched(nets[0], (len(nets),))
    with torch.no_grad():
        for all_of_them, *own in zip(*((*n.parameters(), *n.buffers()) for n in (out, *nets)), strict=True):
            all_of_them.copy_(torch.stack(own))
    return out
