"""The hand-written step "factorise, whiten, project" against automatic differentiation."""

from __future__ import annotations

import pytest
import torch

from duogp.fused.projections import Parts, VarianceTotal, projection_for
from duogp.numerics import products
from helpers.tensor_cores import stand_in


def inputs(
    replicates: int, shared: bool, latents: int, M: int, n: int, dtype: torch.dtype = torch.float64
) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    own = 1 if shared else latents
    B = normal(replicates, own, M, M)
    K = B @ B.mT / M + torch.eye(M, dtype=torch.float64)
    k, mean = normal(replicates, own, M, n), normal(replicates, latents, M)
    root = normal(replicates, latents, M, M).tril()
    return K.requires_grad_(), *(t.to(dtype).requires_grad_() for t in (k, mean, root))


def by_autograd(
    K: torch.Tensor, k: torch.Tensor, mean: torch.Tensor, root: torch.Tensor
) -> list[torch.Tensor]:
    phi = torch.linalg.solve_triangular(torch.linalg.cholesky(K), k, upper=False)
    W = root.mT @ phi
    return [(mean.unsqueeze(-2) @ phi).squeeze(-2), phi.square().sum(-2), W.square().sum(-2)]


def gradients(values: list[torch.Tensor], of: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    loss = sum((v * torch.randn(v.shape, generator=generator, dtype=torch.float64)).sum() for v in values)
    assert isinstance(loss, torch.Tensor)
    g_K, *others = torch.autograd.grad(loss, of)
    # K is symmetric, so only the symmetric part of its gradient means anything; root has a lower triangle.
    return [0.5 * (g_K + g_K.mT), *others[:2], others[2].tril()]


@pytest.mark.parametrize(
    ("replicates", "shared", "latents", "M", "n"),
    [
        (1, True, 1, 5, 3),
        (2, True, 3, 6, 4),
        (2, False, 3, 7, 9),
        (1, True, 1, 300, 20),
        (1, True, 2, 261, 5),
    ],
)
def test_values_and_gradients(replicates: int, shared: bool, latents: int, M: int, n: int) -> None:
    of = inputs(replicates, shared, latents, M, n)
    ours = Parts()(*of)
    theirs = by_autograd(*of)
    for a, b in zip(ours[:3], theirs, strict=True):
        torch.testing.assert_close(a, b)
    for a, b in zip(gradients(list(ours[:3]), of), gradients(theirs, of), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8 * float(b.abs().max()))


@pytest.mark.parametrize(
    ("replicates", "shared", "latents", "M", "n"),
    [(1, True, 1, 5, 30), (2, True, 3, 6, 40), (2, False, 3, 7, 19), (1, True, 1, 9, 4)],
)
@pytest.mark.parametrize("by", ["substitution", "inverse", "tensor-cores"])
def test_the_total_variance_alone(
    replicates: int,
    shared: bool,
    latents: int,
    M: int,
    n: int,
    by: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows share their variance: each has the same weight in what is differentiated."""
    if by != "substitution":  # what a GPU does
        monkeypatch.setattr(products, "substitutes", lambda _: False)
    if by == "tensor-cores":
        stand_in(monkeypatch)
    of = inputs(replicates, shared, latents, M, n)
    mu, change, _ = projection_for("sum", M, n)(*of)
    mean, norm, explained = by_autograd(*of)
    total = change if isinstance(projection_for("sum", M, n), VarianceTotal) else change.sum(-1)
    ours, theirs = [mu, total], [mean, (explained - norm).sum(-1)]
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)
    for a, b in zip(gradients(ours, of), gradients(theirs, of), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8 * float(b.abs().max()))


@pytest.mark.parametrize(
    ("replicates", "shared", "latents", "M", "n"),
    [(1, True, 1, 5, 30), (2, True, 3, 6, 40), (2, False, 3, 7, 19), (1, True, 1, 9, 4)],
)
def test_the_whole_variance_alone(replicates: int, shared: bool, latents: int, M: int, n: int) -> None:
    of = inputs(replicates, shared, latents, M, n)
    ours = projection_for("variance", M, n)(*of)
    mean, norm, explained = by_autograd(*of)
    theirs = [mean, explained - norm]
    for a, b in zip(ours[:2], theirs, strict=True):
        torch.testing.assert_close(a, b)
    for a, b in zip(gradients(list(ours[:2]), of), gradients(theirs, of), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8 * float(b.abs().max()))


@pytest.mark.parametrize("on_tensor_cores", [False, True])
def test_products_with_an_inverse_give_the_same(
    on_tensor_cores: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a GPU does, on a CPU."""
    of = inputs(2, True, 3, 6, 4)
    expected = gradients(list(Parts()(*of)[:3]), of)
    monkeypatch.setattr(products, "substitutes", lambda _: False)
    if on_tensor_cores:
        stand_in(monkeypatch)
    for a, b in zip(gradients(list(Parts()(*of)[:3]), of), expected, strict=True):
        torch.testing.assert_close(a, b)


def test_single_precision_keeps_the_gradient_of_the_covariance_in_double() -> None:
    K, k, mean, root = inputs(1, True, 1, 40, 30, torch.float32)
    mu, norm, explained, _ = Parts()(K, k, mean, root)
    assert mu.dtype == torch.float32
    g_K, g_k = torch.autograd.grad(explained.sum() + norm.sum(), (K, k))
    assert (g_K.dtype, g_k.dtype) == (torch.float64, torch.float32)


def test_a_failed_factorisation_is_reported_not_raised() -> None:
    K, k, mean, root = inputs(1, True, 1, 4, 3)
    with torch.no_grad():
        *_, info = Parts()(-K, k, mean, root)
    assert int(info) != 0
