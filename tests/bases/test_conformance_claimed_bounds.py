"""KL ≥ 0 for any q (identity 24), and no method that claims a bound exceeds log p(y)."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from duogp.bases import Conditional, Exact, Hybrid, Subspace, optimal_decoupled
from duogp.fitting.build import build_model
from duogp.inference.natural import NaturalGradient
from duogp.methods import METHODS, Method
from duogp.methods.settings import Settings
from duogp.models.model import Batch, Model
from duogp.variational import CholeskyQ
from helpers.decoupled import SEEDS, climb, every_basis, natural_step, normal, objective, of_q, problem
from helpers.dense import k, log_evidence
from helpers.identities import put_optimum

#: sizes of means and of factors of S, relative to a typical q: one replicate for each pair
MEANS = [0.0, 0.1, 1.0, 30.0]
ROOTS = [1e-3, 0.3, 1.0, 1.4, 30.0]


@torch.no_grad()
def rescale_q(model: Model, means: list[float], roots: list[float]) -> None:
    """Every mean of every size beside every S of every size."""
    sizes = torch.tensor(list(itertools.product(means, roots)), dtype=torch.float64)
    for name, p in of_q(model):
        size = sizes[:, int(name.endswith(("raw_root", "std")))]
        p.mul_(size.view(-1, *[1] * (p.dim() - 1)))


@every_basis
@settings(max_examples=10, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), jitter=st.sampled_from([0.0, 1e-8, 1e-2]))
def test_identity_24_divergences_are_not_negative(name: str, seed: int, jitter: float) -> None:
    """KL ≥ 0 and Ω ≥ 0 whatever q is. (Equation 10 of DSGPC: test_conformance_two_block.py.)"""
    model, batch, _ = problem(name, seed=seed, jitter=jitter, replicates=len(MEANS) * len(ROOTS), n=4)
    rescale_q(model, MEANS, ROOTS)
    factors, basis = model.factors(), model.basis
    value = basis.kl(factors, basis.q_of(factors))
    assert value.isfinite().all() and (value > -1e-12).all()
    if basis.has_omega:
        _, penalties = basis.evaluate(batch.x.unsqueeze(1), factors, model.numerics, with_omega=True)
        assert penalties.omega is not None and (penalties.omega >= 0).all()


def methods_with_bounds() -> dict[str, tuple[Method, dict[str, Any]]]:
    """Every basis and q of the registry that claims a bound, and some that could: each with its settings."""
    first: dict[tuple[str, str], Method] = {}
    for method in METHODS.values():
        if method.is_bound:
            first.setdefault((method.basis, method.q), method)
    cases: dict[str, tuple[Method, dict[str, Any]]] = {m.name: (m, {}) for m in first.values()}
    svgp = METHODS["svgp"]
    for basis in ("coupled", "orthogonal", "solve", "separate", "orthogonal-a", "hybrid"):
        cases[f"{basis}-diagonal"] = replace(svgp, basis=basis, q="diagonal"), {}
    for ridge in ("printed", "kernel", "contracting"):
        cases[f"coupled-ridge-{ridge}"] = replace(svgp, q="ridge"), {"ridge": ridge}
    cases["orthogonal-ridge"] = replace(svgp, basis="orthogonal", q="ridge"), {"ridge": "contracting"}
    for preconditioner in ("none", "nystrom"):
        cases[f"decoupled-{preconditioner}"] = METHODS["decoupled"], {"preconditioner": preconditioner}
    for whitening in ("Q", "K"):  # with all of Ω
        cases[f"dcsvgp-{whitening}"] = METHODS["dcsvgp"], {"whitening": whitening}
    return cases


CLAIMS = methods_with_bounds()


N, M = 9, 4
SIZES = [0.0, 0.3, 3.0], [0.1, 1.0, 10.0]


def random_models(case: str, seed: int, given: dict[str, Any], on_rows: bool) -> tuple[Model, Batch]:
    """A method as `fit` would build it, β₁ = β₂ = 1: nine replicates, q of all sizes, data of their own.

    ``on_rows``: every row is an inducing point, so that the best q comes as near to log p(y) as it can.
    """
    method, own = CLAIMS[case]
    replicates = len(SIZES[0]) * len(SIZES[1])
    generator = torch.Generator().manual_seed(seed)
    x, away, extra = torch.randn(3, replicates, N, 2, generator=generator, dtype=torch.float64)
    y = torch.randn(replicates, 1, N, generator=generator, dtype=torch.float64)
    batch = Batch(x, y + x[:, None, :, 0])
    z = x if on_rows else away[:, :M]
    extra = x if on_rows and not method.has_second_block else extra
    one = torch.ones(replicates, dtype=torch.float64)
    model = build_model(
        method,
        Settings.of({"mean": "linear"} | given | own),
        inducing=z.unsqueeze(1).clone(),
        extra=extra.unsqueeze(1).clone() if method.has_extra_points else None,
        outputs=1,
        num_data=N,
        beta1=one,
        beta2=one,
        omega="full",
        fixed_noise=False,
        spread=torch.ones(replicates, 1, 2, dtype=torch.float64),
        generators=[torch.Generator().manual_seed(seed + r) for r in range(replicates)],
        rows=batch,
    )
    with torch.no_grad():
        for _, p in of_q(model):
            p.copy_(normal(p, generator))
        if isinstance(model.basis, Conditional):  # the two kernels start as one
            for p in model.basis.mean_kernel.parameters():
                p.add_(0.3 * normal(p, generator))
    rescale_q(model, *SIZES)
    return model, batch


def value_and_evidence(model: Model, batch: Batch) -> tuple[Tensor, Tensor]:
    """The method's objective, summed over data, and log p(y) of its prior: [R] each."""
    basis, x = model.basis, batch.x.unsqueeze(-3)
    target = batch.y - model.mean(x)
    noise = model.likelihood.noise()[..., None].expand_as(target)
    if isinstance(basis, Conditional):  # the nugget of Ω is part of its prior (§11 B6)
        noise = noise + model.numerics.jitter[:, None, None] * basis.kernel.diag(x)
    evidence = log_evidence(target, basis.kernel(x, x) + torch.diag_embed(noise)).sum(-1).detach()
    if isinstance(basis, Exact):
        return basis.log_evidence(target, model.factors()).detach(), evidence
    return objective(model, batch), evidence


def put_best(model: Model, batch: Batch) -> None:
    """The best q there is a formula for; plain coefficients of a hybrid mean are put to zero."""
    basis = model.basis
    if isinstance(basis, Subspace):
        factors, x, alpha = model.factors(), batch.x.unsqueeze(-3), basis.mean_points
        eye = torch.eye(alpha.shape[-2], dtype=torch.float64)
        K_alpha = basis.kernel(alpha, alpha) + 1e-8 * basis.kernel.diag(alpha).mean() * eye
        phi = factors.beta.whiten(basis.kernel(basis.inducing, x))
        y, noise = batch.y - model.mean(x), model.likelihood.noise()[..., None]
        a, root = optimal_decoupled(K_alpha, basis.kernel(alpha, x), phi, y, noise)
        basis.set_(factors, a.detach(), root.detach())
    else:
        if isinstance(basis, Hybrid):
            basis.a.data.zero_()
        put_optimum(model, batch)


def rounding_of_precision(model: Model) -> Tensor:
    """The rounding error ε‖S⁻¹‖ of the precision of q(u), in units of the prior's: [R].

    A natural step of size ρ makes (1 − ρ) S⁻¹ + ρ (I + ΦΦᵀ/s²) from it, whose least eigenvalue may be near
    ρ. Where the error is not far below ρ (a random triangular factor of size 9 can have ‖S⁻¹‖ = 1e17), a
    positive matrix and a step that climbs are more than float64 can promise; that the ELBO is a bound is not.
    """
    found = []
    for block, _ in model.basis.q.parts():
        if isinstance(block, CholeskyQ):
            inverse = torch.linalg.inv(block.root().detach())
            found.append(torch.linalg.matrix_norm(inverse, 2).square().flatten(1).amax(1))
    return torch.finfo(torch.float64).eps * torch.stack(found).amax(0)


@pytest.mark.parametrize("case", CLAIMS)
@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    kernel=st.sampled_from(["rbf", "matern12", "matern32", "matern52", "rq", "rbf + matern32"]),
    lengthscale=st.floats(0.1, 5.0),
    variance=st.floats(0.05, 20.0),
    noise=st.floats(1e-3, 3.0),
    jitter=st.sampled_from([1e-8, 1e-6, 1e-2]),
    rho=st.sampled_from([0.1, 0.5, 1.0]),
    on_rows=st.booleans(),
)
@example(783, "matern32", 1.3, 1.7, 1.28, 1e-8, 0.1, True)  # one q with ‖S⁻¹‖ = 7e16: its step is cut or not
def test_no_claimed_bound_exceeds_the_evidence(
    case: str,
    seed: int,
    kernel: str,
    lengthscale: float,
    variance: float,
    noise: float,
    jitter: float,
    rho: float,
    on_rows: bool,
) -> None:
    """For random kernels, noises and q, after a natural step, which does not lower it, and for the best q."""
    hyperparameters = {"initial_lengthscale": lengthscale, "initial_scale": variance, "initial_noise": noise}
    model, batch = random_models(case, seed, {"kernel": kernel, "jitter": jitter} | hyperparameters, on_rows)
    value, evidence = value_and_evidence(model, batch)
    slack = 1e-6 * (1 + evidence.abs())  # rounding: K_Z of all rows is nearly singular, the noise small
    assert not model.numerics.failed.any()
    assert (value <= evidence + slack).all(), (value, evidence)
    if isinstance(model.basis, Exact):
        assert_close(value, evidence, rtol=1e-8, atol=1e-8)
        return
    if any(isinstance(block, CholeskyQ) for block, _ in model.basis.q.parts()):
        sound = rounding_of_precision(model) < 1e-3 * rho
        natural = natural_step(model, batch, rho)
        after, _ = value_and_evidence(model, batch)
        assert (after <= evidence + slack).all(), (after, evidence)
        assert (natural.shrink == 1)[sound].all(), natural.shrink
        assert (after >= value - 1e-8 * (1 + value.abs()))[sound].all(), (value, after)
    if "ridge" in case:  # its S is what its points make it
        return
    put_best(model, batch)
    best, _ = value_and_evidence(model, batch)
    assert (best <= evidence + slack).all(), (best, evidence)
    assert (best >= value - slack).all() or isinstance(model.basis, Hybrid), (best, value)


def test_the_registry_was_asked_about_every_bound() -> None:
    asked = {(method.basis, method.q) for method, _ in CLAIMS.values()}
    claimed = {(method.basis, method.q) for method in METHODS.values() if method.is_bound}
    assert claimed <= asked
    assert {"coupled", "orthogonal", "orthogonal-a", "hybrid", "solve", "separate", "subspace"} <= {
        basis for basis, _ in claimed
    }


def log_probit_evidence(model: Model, batch: Batch) -> Tensor:
    """log p(y) of three rows under a centred probit GP: [R].

    f + ε ~ N(0, K + I), and y says on which side of zero it is: an orthant has the probability
    ⅛ + Σ arcsin ρ_ij / 4π, ρ the correlations of s ∘ (f + ε), s = ±1.
    """
    x, sign = batch.x.unsqueeze(-3), (2 * batch.y - 1).unsqueeze(-1)
    C = sign * (k(model.basis.kernel, x, x) + torch.eye(3)) * sign.mT
    scale = C.diagonal(dim1=-2, dim2=-1).rsqrt()
    angles = (scale.unsqueeze(-1) * C * scale.unsqueeze(-2)).triu(1).asin().sum((-2, -1))
    return (0.125 + angles / (4 * torch.pi)).log()[:, 0].detach()


@pytest.mark.parametrize(
    "name", ["coupled", "orthogonal", "orthogonal-a", "hybrid", "solve", "components-eps", "separate"]
)
def test_bounds_hold_for_two_classes(name: str) -> None:
    """The ELBO of a probit likelihood against the probability of an orthant; near it once q has climbed."""
    model, batch, _ = problem(name, "probit", n=3, replicates=SEEDS)
    with torch.no_grad():
        for p in model.mean.parameters():
            p.zero_()
    evidence = log_probit_evidence(model, batch)
    assert (objective(model, batch) < evidence).all()
    natural = NaturalGradient(model.basis, model.num_data, 1.0)
    best = climb(model, batch, natural, 15)[-1]
    assert (best < evidence - 1e-3).all()
    if name == "coupled":  # with its points on the rows, only q's being Gaussian is left
        with torch.no_grad():
            model.basis.inducing[..., :3, :] = batch.x.unsqueeze(1)
        best = climb(model, batch, natural, 15)[-1]
        assert (best < evidence - 1e-6).all() and (evidence - best).max() < 0.05
