"""The optimal q(u) in closed form, and training through it (Gaussian likelihoods).

For fixed hyperparameters the ELBO and VFITC are quadratic in q, so with mean features ψ, weights
Λ = w/s² (ELBO) or w/(s² + r) (VFITC) and the prior N(0, P) of the whitened variable

    S⁻¹ = P⁻¹ + ΨΛΨᵀ/β₁ + (β₂/β₁) T,     m = S ΨΛ(y − μ₀)/β₁          (MATH §1.3, §2.1, §11 A3)

The gradient of the collapsed bound needs no further algebra: at the optimum the derivative through q
vanishes, so it is the partial derivative of the ordinary objective with (m, S) held fixed. Everything is
summed over chunks of rows: memory is O(M² + chunk·M) whatever n is.

Chunks may be those of several processes (`numerics.groups`): the sums are added over all of them, each solves
for the same q, and the gradients of their own rows are added. What does not depend on the rows, and what
depends on the sums alone, is the leader's to differentiate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from duogp.bases.marginals import Features, Mismatch, RowMismatch
from duogp.fused import collapsed
from duogp.fused.table import sums_are_enough
from duogp.inference.optimal_q import Optimum
from duogp.models.model import Batch, Model
from duogp.numerics.factorisation import lower_root_of_inverse
from duogp.numerics.groups import Group
from duogp.variational import Q, ShrunkQ


class Statistics(NamedTuple):
    """What the data say about q, summed over rows; additive over chunks."""

    mean_gram: Tensor  # Ψ_μ Λ Ψ_μᵀ
    gram: Tensor  # Ψ Λ Ψᵀ  (the same tensor where mean and covariance share features)
    moment: Tensor  # Ψ_μ Λ (y − μ₀)
    mismatch: Tensor | None  # T

    def over(self, group: Group) -> Statistics:
        """The sums over all processes."""
        if self.mean_gram is self.gram:
            gram, moment, mismatch = group.add([self.gram, self.moment, self.mismatch])
            return Statistics(gram, gram, moment, mismatch)  # type: ignore[arg-type]
        return Statistics(*group.add(self))  # type: ignore[arg-type]

    def __add__(self, other: Statistics) -> Statistics:  # type: ignore[override]
        same = self.mean_gram is self.gram
        gram = self.gram + other.gram
        both = self.mismatch is not None and other.mismatch is not None
        return Statistics(
            mean_gram=gram if same else self.mean_gram + other.mean_gram,
            gram=gram,
            moment=self.moment + other.moment,
            mismatch=self.mismatch + other.mismatch if both else None,  # type: ignore[operator]
        )


def row_weights(model: Model, batch: Batch, features: Features) -> Tensor:
    """Λ: the precision of a row as an observation of ψᵀu, [R, latent, n]."""
    noise = model.likelihood.bind(batch.noise).noise  # type: ignore[attr-defined]
    if not model.objective.has_closed_form:
        raise ValueError(f"the objective {model.objective} is not quadratic in q(u): it has no closed form")
    if model.objective.smooths_residual:
        noise = noise + features.residual
    weights = noise.reciprocal() * torch.ones_like(features.residual)  # one kernel may serve many outputs
    return weights if batch.weight is None else weights * batch.weight.unsqueeze(-2)


@torch.no_grad()
def statistics(model: Model, batch: Batch, features: Features, T: Tensor | None) -> Statistics:
    """The sums of one batch of rows that the closed form needs, in float64."""
    weights = row_weights(model, batch, features).double()
    target = batch.y - model.mean(batch.x.unsqueeze(-3))
    if features.offset is not None:
        target = target - features.offset
    psi = features.mean.double()  # a Gram matrix over s² must stay positive next to I: never in float32
    weighted = psi * weights.unsqueeze(-2)
    gram = mean_gram = weighted @ psi.mT
    if features.explained is not features.mean:
        explained = features.explained.double()
        gram = explained * weights.unsqueeze(-2) @ explained.mT
    moment = (weighted @ target.double().unsqueeze(-1)).squeeze(-1)
    return Statistics(mean_gram, gram, moment, T)


@torch.no_grad()
def optimum(model: Model, factors: Any, stats: Statistics) -> Optimum:
    """(m*, S*) from the statistics. Precisions are P⁻¹ + something positive, so no jitter is needed."""
    beta1, beta2 = (b[:, None, None, None] for b in (model.beta1, model.beta2))

    def precision(gram: Tensor, V: Tensor | None) -> Tensor:
        eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
        prior = eye.expand_as(gram) if V is None else V.double().mT @ V.double()
        out = prior + gram / beta1
        return out if stats.mismatch is None else out + beta2 / beta1 * stats.mismatch

    def inverse_root(P: Tensor) -> Tensor:
        root, info = lower_root_of_inverse(P)
        model.numerics.note(info)
        return root

    q = model.basis.q
    V, V_mean = model.basis.prior_root(factors), model.basis.mean_prior_root(factors)
    together = stats.mean_gram is stats.gram and V is V_mean  # mean and covariance have one precision
    P = precision(stats.gram, V)
    moment = stats.moment / beta1.squeeze(-1)
    if (centre := model.basis.prior_mean(factors)) is not None:
        moment = moment + centre.double()
    if len(q.parts()) == 1 and together:
        root = inverse_root(P)
        return Optimum((root @ (root.mT @ moment.unsqueeze(-1))).squeeze(-1), root)

    # Several blocks: each S from its diagonal block, the means from the full precision (MATH §11 B10).
    root = torch.zeros_like(P)
    for block, s in q.parts():
        known = isinstance(block, ShrunkQ)
        root[..., s, s] = block.root().to(P) if known else inverse_root(P[..., s, s])
    P_mean = P if together else precision(stats.mean_gram, V_mean)
    learned = [s for block, s in q.parts() if block.learns_mean] if P_mean is P else [slice(None)]
    index = torch.cat([torch.arange(P_mean.shape[-1], device=P.device)[s] for s in learned])
    mean_root = inverse_root(P_mean[..., index[:, None], index])
    mean = torch.zeros_like(moment)
    mean[..., index] = (mean_root @ (mean_root.mT @ moment[..., index, None])).squeeze(-1)
    return Optimum(mean, root)


class Evaluated(NamedTuple):
    """An evaluation of the bound: its loss, where it was made, and the optimum that it found."""

    loss: float
    at: Tensor
    best: Optimum


class CollapsedObjective:
    """The collapsed bound per datum and its gradient, over chunks of rows.

    ``chunks`` are functions that produce the rows (so that nothing has to be kept): a list, or anything that
    can be iterated over again and again, one pass over the rows each time. With a list of one chunk the
    features are computed once and serve both the statistics and the gradient. ``group``: the processes whose
    chunks together are the rows; each needs one chunk at least, which may have no rows. ``quick``: gradients
    may come from float32 products where these are precise enough (`fused.collapsed`).
    """

    def __init__(
        self,
        model: Model,
        chunks: Iterable[Callable[[], Batch]],
        group: Group | None = None,
        *,
        quick: bool = False,
    ) -> None:
        self.model, self.quick = model, quick
        self.chunks = chunks
        self.group = Group() if group is None else group
        count = len(chunks) if isinstance(chunks, Sequence) else None
        if model.uses_omega and (count is None or self.group.world > 1):
            raise ValueError("Ω (beta2) couples the rows of a chunk: it is not possible on streamed rows")
        self.omega_scale = model.basis.collapsed_omega_scale(1 if count is None else count)
        self.single = count == 1 and self.group.world == 1
        self._lowest: Evaluated | None = None  # of the evaluations so far, where one is worth remembering

    def backward(self) -> Tensor:
        """Accumulate gradients; return the loss per datum [R]."""
        loss = self._backward()
        return loss if self.group.world == 1 else self._shared_gradients(loss)

    def _backward(self) -> Tensor:
        """`backward` of this process' rows; of the leader's also what all have in common."""
        model = self.model
        factors = model.factors()
        if sums_are_enough(model):
            return self._backward_from_sums(factors)
        if self.single:
            batch = next(iter(self.chunks))()
            features, mismatch = self._rows(batch, factors)
            best = optimum(model, factors, self._statistics(batch, features, mismatch))
            q = best.as_q(model.basis.q)
            loss = self._data_loss(batch, features, mismatch, q) + self._shared_loss(factors, q)
            loss.sum().backward()
            return loss.detach()

        leaves, restore = _cut(factors)
        best = self.solve(restore(leaves))
        q = best.as_q(model.basis.q)
        total = torch.zeros_like(model.num_data)
        for chunk in self.chunks:
            batch = chunk()
            features, mismatch = self._rows(batch, restore(leaves))
            loss = self._data_loss(batch, features, mismatch, q)
            loss.sum().backward()
            total = total + loss.detach()
        (total,) = self.group.add([total])
        shared = self._shared_loss(restore(leaves), q)
        if shared.requires_grad and self.group.leads:  # the KL of a whitened q at its optimum is a constant
            shared.sum().backward()
        outputs = [t for t in _tensors(factors) if t.requires_grad]
        torch.autograd.backward(outputs, [_gradient(leaf) for leaf in leaves if leaf.requires_grad])
        return total + shared.detach()

    def _backward_from_sums(self, factors: Any) -> Tensor:
        """`backward` by way of `fused.collapsed`: a single chunk is evaluated once, several twice."""
        model, leads = self.model, self.group.leads
        leaves, restore = _cut(factors)
        own = restore(leaves)
        quick = self.quick and collapsed.quick_is_enough(model, own)
        with torch.set_grad_enabled(self.single):
            total, kept, by_row = self._sums(own, quick=quick)
        sums = total.leaves()
        data = collapsed.weighed(model, own, sums, by_row=by_row)
        gram = data.precision()
        best = optimum(model, own, Statistics(gram, gram, data.moment.detach(), None))
        q = best.as_q(model.basis.q)
        loss = data.loss(q.mean, q.S) / model.num_data + self._shared_loss(own, q)
        if not quick:
            self._remember(loss, best)
        loss.sum().backward(inputs=None if leads else [s for s in sums if s is not None])
        centre, parts = collapsed.centre_of(model, own, q.mean), collapsed.sides(model, own)
        whitened = kept is not None or quick or parts[0].factor.L_inv.dtype != torch.float64
        pull = collapsed.Pullback(sums, centre, parts, whitened=whitened)
        for chunk in self.chunks:
            rows = collapsed.ChunkSums(model, chunk(), own, quick=quick) if kept is None else kept
            rows.backward(pull)
            del rows
        if leads:
            collapsed.backward_to_factors(sums, parts)
        outputs = [t for t in _tensors(factors) if t.requires_grad]
        torch.autograd.backward(outputs, [_gradient(leaf) for leaf in leaves if leaf.requires_grad])
        return loss.detach()

    def _shared_gradients(self, loss: Tensor) -> Tensor:
        """Gradients and failures added over the processes, and the leader's loss, by one all-reduce."""
        model = self.model
        of_q = {id(p) for p in model.basis.q.parameters()}
        parameters = [p for p in model.parameters() if p.requires_grad and id(p) not in of_q]
        failed = model.numerics.failed
        leading = loss if self.group.leads else torch.zeros_like(loss)
        found, failures, *gradients = self.group.add(
            [leading, failed.double(), *(_gradient(p) for p in parameters)]
        )
        failed.copy_(failures > 0)
        for p, gradient in zip(parameters, gradients, strict=True):
            p.grad = gradient
        return found

    def _remember(self, loss: Tensor, best: Optimum) -> None:
        """Keep the optimum of the lowest loss: training ends there, and its q(u) needs no pass of its own.

        Not on a GPU, which would have to be asked, nor of replicates, whose lowest losses come one by one.
        """
        if loss.is_cuda or len(loss) > 1 or self.group.world > 1:
            return
        value = float(loss.detach())
        if math.isfinite(value) and (self._lowest is None or value <= self._lowest.loss):
            self._lowest = Evaluated(value, _state(self.model), best)

    @torch.no_grad()
    def solve(self, factors: Any | None = None) -> Optimum:
        """The optimal q at the current hyperparameters."""
        if factors is None and self._lowest is not None and torch.equal(self._lowest.at, _state(self.model)):
            return self._lowest.best
        factors = self.model.factors() if factors is None else factors
        if sums_are_enough(self.model):
            sums, _, by_row = self._sums(factors)
            data = collapsed.weighed(self.model, factors, sums, by_row=by_row)
            gram = data.precision()
            return optimum(self.model, factors, Statistics(gram, gram, data.moment, None))
        stats: Statistics | None = None
        for chunk in self.chunks:
            batch = chunk()
            features, mismatch = self._rows(batch, factors)
            part = self._statistics(batch, features, mismatch)
            stats = part if stats is None else stats + part
        assert stats is not None
        if self.group.world > 1:
            stats = stats.over(self.group)
        return optimum(self.model, factors, stats)

    def _sums(
        self, factors: Any, *, quick: bool = False
    ) -> tuple[collapsed.Sums, collapsed.ChunkSums | None, bool]:
        """Over all chunks, the rows of a single chunk, and whether rows have noise of their own."""
        total: collapsed.Sums | None = None
        by_row = False
        for chunk in self.chunks:
            batch = chunk()
            by_row = batch.noise is not None
            rows = collapsed.ChunkSums(self.model, batch, factors, quick=quick)
            total = rows.sums() if total is None else total + rows.sums()
            if not self.single:
                del rows
            del batch
        assert total is not None
        if self.group.world > 1:
            total = collapsed.Sums(*self.group.add(total))  # type: ignore[arg-type]
        return total, rows if self.single else None, by_row

    @torch.no_grad()
    def _statistics(
        self, batch: Batch, features: Features, mismatch: Mismatch | RowMismatch | None
    ) -> Statistics:
        T = None if mismatch is None else self.omega_scale * mismatch.gram(self.model.numerics)
        return statistics(self.model, batch, features, T)

    def _rows(self, batch: Batch, factors: Any) -> tuple[Features, Mismatch | RowMismatch | None]:
        model, x = self.model, batch.x.unsqueeze(-3)
        features = model.basis.features(x, factors)
        if model.uses_omega:
            found = model.basis.mismatch(x, features, factors, model.numerics)
            assert found is not None
            return found
        return features, None

    def _data_loss(
        self, batch: Batch, features: Features, mismatch: Mismatch | RowMismatch | None, q: Q
    ) -> Tensor:
        model = self.model
        f = model.basis.marginals_of(features, q)
        f = f._replace(mean=f.mean + model.mean(batch.x.unsqueeze(-3)))
        data = model.objective(model.likelihood.bind(batch.noise), f, batch.y)
        if batch.weight is not None:
            data = data * batch.weight
        loss = -data.sum(-1)
        if mismatch is not None:
            loss = loss + model.beta2 * self.omega_scale * mismatch.omega(q, model.numerics).sum(-1)
        return loss / model.num_data

    def _shared_loss(self, factors: Any, q: Q) -> Tensor:
        model = self.model
        return (model.beta1 * model.basis.kl(factors, q).sum(-1) - model.prior()) / model.num_data


@torch.no_grad()
def _state(model: Model) -> Tensor:
    """Everything that an optimum depends on beside the rows, as one vector: all but q itself."""
    of_q = {id(t) for t in (*model.basis.q.parameters(), *model.basis.q.buffers())}
    every = (t for t in (*model.parameters(), *model.buffers()) if id(t) not in of_q)
    return torch.cat([t.reshape(-1).double() for t in every])


def _tensors(factors: Any) -> list[Tensor]:
    """The tensors of nested named tuples, in order."""
    if isinstance(factors, Tensor):
        return [factors]
    return [t for part in factors for t in _tensors(part)]


def _rebuilt(factors: Any, tensors: Iterator[Tensor]) -> Any:
    """The same nesting around other tensors."""
    if isinstance(factors, Tensor):
        return next(tensors)
    return type(factors)(*(_rebuilt(part, tensors) for part in factors))


def _cut(factors: Any) -> tuple[list[Tensor], Callable[[list[Tensor]], Any]]:
    """Detach factors from their graph so that chunks can send gradients back one after the other."""
    leaves = [t.detach().requires_grad_(t.requires_grad) for t in _tensors(factors)]
    return leaves, lambda parts: _rebuilt(factors, iter(parts))


def _gradient(leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
