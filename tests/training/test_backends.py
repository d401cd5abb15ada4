"""How steps are executed must not change what they compute."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch

import duogp
from duogp.kernels import RBF
from duogp.training import Minibatches, Problem, Stochastic, Table, TableFeed, backends
from duogp.training.joint import CompiledStep
from helpers.fit_tables import table

compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
SETTINGS = {
    "num_inducing": 8,
    "solver": "stochastic",
    "steps": 30,
    "batch_size": 7,
    "validation_fraction": 0.0,
    "early_stopping": False,
}
#: A kernel without a profile: its steps are no direct ones.
TAPED = SETTINGS | {"kernel": "rq"}


@compiler
def test_compiled_steps_are_the_eager_ones() -> None:
    """And nothing is compiled twice: batches have one shape, whatever is left over at the end of an epoch."""
    X, y = table()
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    compiled, eager = (duogp.fit(X, y, "svgp", backend=b, **SETTINGS) for b in ("compile", "eager"))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    for a, b in zip(compiled.model.parameters(), eager.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(compiled.predict(X).std, eager.predict(X).std, rtol=1e-6)


@pytest.mark.slow
@compiler
def test_compiled_steps_see_new_draws() -> None:
    X, y = table()
    labels = (y > np.median(y)).astype(int) + (y > np.quantile(y, 0.8))
    given = SETTINGS | {"likelihood": "softmax", "steps": 6}
    compiled, eager = (duogp.fit(X, labels, "svgp", backend=b, **given) for b in ("compile", "eager"))
    for a, b in zip(compiled.model.parameters(), eager.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)


@pytest.mark.slow
@compiler
def test_compiled_steps_of_replicates_see_new_draws() -> None:
    X, y = table()
    labels = (y > np.median(y)).astype(int) + (y > np.quantile(y, 0.8))
    given = SETTINGS | {"likelihood": "softmax", "steps": 6}
    rows = [np.arange(len(X))] * 2
    compiled, eager = (
        duogp.fit_replicates(X, labels, rows, "svgp", backend=b, **given) for b in ("compile", "eager")
    )
    for c, e in zip(compiled, eager, strict=True):
        np.testing.assert_allclose(c.predict(X).probabilities, e.predict(X).probabilities, atol=1e-8)


class Turned(RBF):
    """Of W x: the gradient of W comes transposed."""

    def __init__(self) -> None:
        super().__init__(2)
        self.W = torch.nn.Parameter(torch.tensor([[1.0, 0.3], [-0.2, 0.9]], dtype=torch.float64))

    def covariance(self, x1: torch.Tensor, x2: torch.Tensor, lengthscale: torch.Tensor) -> torch.Tensor:
        return super().covariance(x1 @ self.W.mT.to(x1), x2 @ self.W.mT.to(x2), lengthscale)


@pytest.mark.slow
@compiler
def test_gradients_of_compiled_steps_lie_as_their_parameters() -> None:
    X, y = table()
    compiled, eager = (
        duogp.fit(X, y, "svgp", kernel=Turned(), backend=b, **SETTINGS) for b in ("compile", "eager")
    )
    np.testing.assert_allclose(compiled.predict(X).mean, eager.predict(X).mean, atol=1e-8)


def test_a_formula_of_ones_own_is_trained_and_predicted_with() -> None:
    X, y = table()
    gp = duogp.fit(X, y, "svgp", kernel=Turned(), **SETTINGS)
    moved = gp.model.basis.kernel.W.detach() - Turned().W.detach()  # it has a gradient
    assert moved.abs().max() > 1e-3
    np.testing.assert_allclose(gp.predict_mean(X), gp.predict(X).mean, atol=1e-10)
    np.testing.assert_allclose(gp.predict(X, in_parts=False).std, gp.predict(X).std, atol=1e-8)


@pytest.mark.slow
@compiler
def test_a_compiled_step_notes_a_failed_factorisation_and_sees_more_jitter() -> None:
    X, y = table()
    model = duogp.fit(X, y, "svgp", **SETTINGS | {"steps": 1}).model
    batches = Minibatches(torch.arange(7)[None], 7, [torch.Generator()])
    feed = TableFeed(Table(torch.as_tensor(X), torch.as_tensor(y)[:, None]), batches)
    feed.start_epoch()
    feed.select(0)
    step = CompiledStep(model, feed)
    with torch.no_grad():
        model.basis.inducing.copy_(torch.zeros_like(model.basis.inducing))  # all points coincide
        model.numerics.jitter.zero_()
    step()
    assert model.numerics.failed.all()
    model.numerics.failed.zero_()
    model.numerics.jitter.fill_(1e-3)
    assert torch.isfinite(step()).all() and not model.numerics.failed.any()
    assert torch.isfinite(model.basis.inducing.grad).all()


def test_compiling_is_for_minibatch_steps() -> None:
    X, y = table()
    with pytest.raises(ValueError, match="minibatch steps without natural gradients"):
        duogp.fit(X, y, "coupled-nat", num_inducing=5, epochs=1, backend="compile")
    with pytest.raises(ValueError, match="minibatch steps"):
        duogp.fit(X, y, "sgpr", num_inducing=5, epochs=1, backend="compile")


def cannot_compile(self: Stochastic, wanted: bool = True) -> None:
    def broken() -> torch.Tensor:
        raise RuntimeError("no compiler found\nand much more")

    self.compiled = broken if wanted else None


def test_a_compiler_that_fails_is_named_or_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = table()
    monkeypatch.setattr(Stochastic, "compile", cannot_compile)
    with pytest.raises(RuntimeError, match=r"not possible here \(no compiler found\); use 'eager'"):
        duogp.fit(X, y, "svgp", backend="compile", **SETTINGS)
    monkeypatch.setattr(backends, "COMPILED_STEPS", 30)
    automatic, eager = (duogp.fit(X, y, "svgp", backend=b, **TAPED) for b in ("auto", "eager"))
    np.testing.assert_array_equal(automatic.predict(X).mean, eager.predict(X).mean)


def refuse(self: Problem, wanted: bool = True) -> None:
    raise AssertionError("compiled")


def test_few_steps_are_not_worth_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stochastic, "compile", refuse)
    duogp.fit(*table(), "svgp", **TAPED)


def test_a_direct_step_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stochastic, "compile", refuse)
    monkeypatch.setattr(backends, "COMPILED_STEPS", 0)
    duogp.fit(*table(), "svgp", **SETTINGS)
    with pytest.raises(AssertionError, match="compiled"):
        duogp.fit(*table(), "svgp", **TAPED)
