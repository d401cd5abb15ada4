"""The roof: how long the counted operations of a step take at the rate of the device's own matrix product.

Counts are of floating-point operations (a multiplication and an addition are two) of the algorithms of
MATH §10: a whitened basis, the backward by matrix products, triangular structure exploited throughout (a
product with a triangular matrix counts half). A backward counts twice its forward. What is elementwise
(exponentials, Adam, sums over features) is not counted: it is part of the gap.
"""

from __future__ import annotations

import torch

from racing.clock import Contestant, now

#: Seconds that a block of matrix products should last.
BLOCK_SECONDS = 0.02


def factor(m: int) -> float:
    """Cholesky, inverse of the factor, and L⁻ᵀ P L⁻¹ of the backward."""
    return 5 / 3 * m**3


def kernel(points: int, rows: int, dims: int) -> float:
    return 3 * 2 * points * rows * dims


def whiten(m: int, rows: int) -> float:
    """φ = L⁻¹K, gK = L⁻ᵀgφ, and the triangle of gφ φᵀ; and so is a product with L_S."""
    return 3 * m**2 * rows


def coupled(m: int, batch: int, dims: int, latents: int = 1) -> float:
    """One step of a coupled basis; kernel and points are shared by the latent functions."""
    shared = kernel(m, m + batch, dims) + factor(m) + whiten(m, batch)
    return shared + latents * whiten(m, batch)


def conditional(m: int, batch: int, dims: int, *, omega: bool) -> float:
    """Two kernels, the bridge between their factors and the KL through it; Ω of single rows."""
    flops = 2 * (kernel(m, m + batch, dims) + factor(m) + whiten(m, batch)) + whiten(m, batch) + 2 * m**3
    return flops + (whiten(m, batch) if omega else 0)


def two_block(m: int, extra: int, batch: int, dims: int, *, full: bool) -> float:
    """A second block orthogonal to the first; `full`: it has a covariance of its own."""
    flops = coupled(m, batch, dims) + kernel(extra, m + extra + batch, dims) + factor(extra)
    flops += whiten(m, extra) + 3 * extra**2 * m  # φ(O) and the Schur complement
    flops += 3 * 2 * m * extra * batch + whiten(extra, batch)
    return flops + (whiten(extra, batch) if full else 0)


def many_means(m: int, extra: int, batch: int, dims: int, columns: int) -> float:
    """Mean points with plain coefficients: kernel columns and their sums only."""
    others = m + batch + columns
    return coupled(m, batch, dims) + kernel(extra, others, dims) + 3 * 2 * extra * others


def prediction(m: int, rows: int, dims: int) -> float:
    """Forward only: kernel, mean, and one product with a triangle: the variance without its parts."""
    return rows * (2 * m * dims + 2 * m + m**2)


def mean_prediction(m: int, rows: int, dims: int) -> float:
    return rows * (2 * m * dims + 2 * m)


def optimal_q(m: int, rows: int, dims: int) -> float:
    """Kernel, whitening, the symmetric ΦΦᵀ; the solve in the end."""
    return rows * (2 * m * dims + 2 * m**2) + 5 / 3 * m**3


class Product(Contestant):
    """[m, k] @ [k, n], again and again; on CUDA as one graph, so that launching is not what is measured."""

    def __init__(self, shape: tuple[int, int, int], dtype: str, device: str) -> None:
        m, k, n = shape
        kind = getattr(torch, dtype)
        self.flops = 2.0 * m * k * n
        self.device = device
        a = torch.randn(m, k, dtype=kind, device=device)
        b = torch.randn(k, n, dtype=kind, device=device)
        out = torch.empty(m, n, dtype=kind, device=device)

        def product() -> None:
            torch.mm(a, b, out=out)

        self._run, self.repeats = product, 1
        if device.startswith("cuda"):
            product()
            torch.cuda.synchronize()
            graph, self.repeats = torch.cuda.CUDAGraph(), 20
            with torch.cuda.graph(graph):
                for _ in range(self.repeats):
                    product()
            self._run = graph.replay
        self._run()
        begun = now(device)
        self._run()
        self.times = max(1, min(1000, round(BLOCK_SECONDS / (now(device) - begun))))

    def block(self) -> float:
        """Seconds of one product."""
        begun = now(self.device)
        for _ in range(self.times):
            self._run()
        return (now(self.device) - begun) / (self.times * self.repeats)
