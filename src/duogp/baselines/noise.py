"""The noise level chosen on validation rows, for networks that are thinned at random in training.

Under dropout a learned σ² stands for the noise and for the scatter of the masks; the mixture over masks then
counts that scatter again. As in Gal and Ghahramani 2016 held-out rows settle it: σ² ← f σ² with the f, one
for each output, under which the mixture gives them the highest density.
"""

from __future__ import annotations

import torch
from torch import Tensor

from duogp.baselines.heads import GaussianHead, log_normal
from duogp.baselines.mixture import log_mean_exp
from duogp.baselines.networks import Committee
from duogp.training.feed import Table

#: What σ² may be multiplied by.
FACTORS = torch.logspace(-2, 1, 61, dtype=torch.float64).tolist()
#: Fewer rows do not know a noise level, and more do not know it better.
FEWEST_ROWS, MOST_ROWS = 20, 5000
CHUNK = 1024


@torch.no_grad()
def calibrate_noise(network: Committee, table: Table, rows: Tensor) -> Tensor | None:
    """Set the factor of the head and return it, [outputs]; None where there are too few rows."""
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
