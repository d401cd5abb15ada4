"""Calibration of the noise variance on validation rows, for networks trained with dropout.

Under dropout a learned σ² holds the noise and the scatter of the masks; the mixture over masks adds that
scatter a second time. As in Gal and Ghahramani 2016, σ² ← f σ² with the factor f, one for each output, that
maximises the mixture's density of the validation rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from duogp.baselines.heads import GaussianHead, log_mean_exp
from duogp.baselines.networks import Committee
from duogp.likelihoods.gaussian import log_normal
from duogp.training.feed import Table

#: Candidates for f.
FACTORS = torch.logspace(-2, 1, 61, dtype=torch.float64).tolist()
#: With fewer rows f is not estimated; of more rows, a sample of this size is used.
FEWEST_ROWS, MOST_ROWS = 20, 5000
CHUNK = 1024


@torch.no_grad()
def calibrate_noise(network: Committee, table: Table, rows: Tensor) -> Tensor | None:
    """The factor f [outputs], written into the head; None where there are too few rows."""
    head = network.head
    if not isinstance(head, GaussianHead) or len(rows) < FEWEST_ROWS:
        return None
    rows = rows[:: -(-len(rows) // MOST_ROWS)]
    batch = table.gather(rows.unsqueeze(0))
    head.factor.fill_(1.0)
    parts = [head.moments(network.passes(x).double()) for x in batch.x[0].split(CHUNK)]
    mean, noise = (torch.cat(part, -1) for part in zip(*parts, strict=True))  # [S, outputs, n]
    y = batch.y[0].double()
    weight = 1.0 if batch.weight is None else batch.weight[0].double()
    densities = [(log_mean_exp(log_normal(y, mean, f * noise)) * weight).sum(-1) for f in FACTORS]
    best = torch.stack(densities).nan_to_num(-torch.inf).argmax(0)
    head.factor.copy_(torch.tensor(FACTORS, dtype=torch.float64, device=best.device)[best])
    return head.factor
