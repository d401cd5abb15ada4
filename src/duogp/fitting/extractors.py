"""Feature extractors for deep kernels: which widths, whose network, and where the kernel on top starts."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from duogp.kernels import Constant, Deep, Kernel
from duogp.kernels.foreign import Foreign
from duogp.methods.settings import Settings
from duogp.numerics.networks import MLP
from duogp.numerics.parameters import batched

#: Widths by the number of training rows. The d–1000–500–50–20 (ReLU) of the first deep kernels is not among
#: them: its fresh features are hardly apart, and a few steps of 5e-3 move them by many lengthscales.
#: It trained worse on pol and kin40k, and fell to constants on nycflights and with decoupled extractors.
WIDTHS = ((4_000, (256, 256)), (0, (100, 50, 20)))


def default_widths(rows: int) -> tuple[int, ...]:
    """Widths of the hidden layers of a feature extractor, by the number of rows."""
    return next(widths for least, widths in WIDTHS if rows >= least)


def make_network(
    settings: Settings, inputs: int, widths: Sequence[int], batch: tuple[int, int], seed: int
) -> MLP:
    """A network for all replicates, [R, 1]; every replicate starts from the same weights."""
    net = MLP(
        inputs,
        widths,
        activation=settings.activation,
        normalisation=settings.normalisation,
        generator=torch.Generator().manual_seed(seed),
    )
    return batched(net, batch)


class Extractor:
    """h for one role (covariance or mean): the network, and its features of the inducing points."""

    def __init__(
        self, settings: Settings, role: str, rows: int, points: Tensor, seed: int, batch: tuple[int, int]
    ) -> None:
        mine = role == "mean"
        module = (
            settings.mean_extractor if mine and settings.mean_extractor is not None else settings.extractor
        )
        widths = (settings.mean_widths if mine else None) or settings.widths or default_widths(rows)
        self.inputs = points.shape[-1]
        self.net: nn.Module
        if module is None:
            # Extractors of one size start equal, so that decoupled kernels start as one.
            self.net = make_network(settings, self.inputs, widths, batch, seed)
        else:
            self.net = batched(Foreign(copy.deepcopy(module)), batch)
        self.net = self.net.to(points.device)
        with torch.no_grad():
            self.points = self._first_features(points)
        self.features = self.points.shape[-1]

    def kernel(self, base: Kernel) -> Deep:
        return Deep(self.net, base, self.inputs, self.features)

    def _first_features(self, points: Tensor) -> Tensor:
        probe = Deep(self.net, Constant(), self.inputs, -1)
        h = probe.extractor(points)
        if h.dim() != points.dim() or h.shape[:-1] != points.shape[:-1]:
            raise ValueError(
                f"an extractor must map {tuple(points.shape)} to {(*points.shape[:-1], 'features')}, got "
                f"{tuple(h.shape)}"
            )
        return h

    @property
    def spread(self) -> Tensor:
        """Standard deviation of every feature over the inducing points, [R, 1, F]."""
        spread = self.points.double().std(-2)
        return torch.where(spread > 1e-6, spread, torch.ones_like(spread))
