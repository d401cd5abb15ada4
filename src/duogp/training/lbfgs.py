"""L-BFGS for a deterministic loss, many replicates at once: each has its own memory, line search and end.

One call of `advance` takes in one loss and one gradient, those at the points tried last, and says where to
look next, so that a step of the training loop is one evaluation, as it is with Adam. On a GPU nothing here
asks the device: what differs between replicates is chosen with masks.

The direction comes from the compact form of the inverse Hessian (Byrd, Nocedal, Schnabel 1994), a handful of
small products where the two-loop recursion has hundreds of operations. The Hessian that it corrects is
diagonal, not a multiple of I (see `_curvatures`): a lengthscale of 50 and a coordinate of an inducing point
do not move by steps of one size, and forty pairs cannot tell that of thousands of numbers. The line search
is bisection for the weak Wolfe conditions (Lewis, Overton 2013). A loss that is not finite, or a failed
factorisation, is a step too far and nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import softplus

from duogp.numerics.groups import Group

#: Pairs of steps and changes of the gradient that are remembered.
MEMORY = 40
#: Numbers of that memory, of steps alone, past which it has fewer pairs; and how many at least.
MOST_NUMBERS, FEWEST_PAIRS = 2_000_000, 10
#: Of the weak Wolfe conditions: decrease and curvature.
DECREASE, CURVATURE = 1e-4, 0.9
#: Evaluations in one direction before it is given up.
MOST_TRIALS = 12
#: Furthest that a raw parameter x goes in one step, in units of max(1, x): softplus makes that a factor of
#: what stands behind it. Longer steps throw the noise to its floor, where nothing pulls it back (exact GP on
#: 200 rows of Friedman's function: loss 0.26 with 0.5 and 1, 0.07 with 0.25 and 0.12).
LONGEST_MOVE = 0.25
#: How many pairs it takes to believe what they say of one number against what they say of its parameter, and
#: the share of the latter that stays.
TRUSTED_PAIRS, SHARED = 20.0, 0.1


#: Attributes that say how the gradient changes, and all that a checkpoint holds beside the parameters.
PAIRS = "steps", "changes", "known"
REMEMBERED = (
    *("x", "_written", "loss", "gradient", "direction", "slope", "length", "low", "high", "trials"),
    *PAIRS,
    *("given_up", "frozen"),
)


class Curvature:
    """What L-BFGS has found of a loss, for a training of the same parameters on other rows.

    A sample of the rows bends the loss as all rows do: who begins with its pairs takes long steps at once
    (kin40k, 10,000 rows after 5,000, 300 points: ten evaluations gain .033 a row instead of .027).

    ``of_large_sample``: it is nearly that of all rows. Then steps that are too long in a few numbers are cut
    in these alone, and are not shortened as a whole (houseelectric, 200,000 rows after 20,000, 500 points:
    three evaluations gain as much as six).
    """

    def __init__(self) -> None:
        self.pairs: dict[str, Tensor] = {}
        self.of_large_sample = False

    def scale(self, factor: float) -> None:
        """Turn it into that of a loss so many times as large."""
        if self.pairs:
            self.pairs["changes"] = factor * self.pairs["changes"]

    def follow(self, group: Group) -> None:
        """Take what the leader of several processes has found."""
        group.same([self.pairs[name] for name in sorted(self.pairs)])


class LBFGS:
    """Minimises a loss [R] of parameters that lead with R replicates.

    ``bent``: those of them that stand before a softplus.
    """

    def __init__(self, parameters: Sequence[Tensor], replicates: int, bent: Collection[Tensor] = ()) -> None:
        self.parameters, self.replicates = list(parameters), replicates
        self.sizes = [p.numel() // replicates for p in self.parameters]
        device = self.parameters[0].device
        marked, of_parameters = {id(p) for p in bent}, zip(self.parameters, self.sizes, strict=True)
        marks = [torch.full((size,), id(p) in marked) for p, size in of_parameters]
        self._bent = torch.cat(marks).to(device)
        self.frozen = torch.zeros(replicates, dtype=torch.bool, device=device)  # those that move no more
        self.cuts_moves = False  # of single numbers, see `Curvature`
        self.restart()

    def restart(self) -> None:
        """Begin anew at the parameters as they are: nothing is remembered."""
        R, like = self.replicates, self._flat(self.parameters)
        self.x = self._written = like  # the best point of each replicate
        self.loss = like.new_full((R,), torch.inf)
        self.gradient = torch.zeros_like(like)
        self.direction = torch.zeros_like(like)
        self.slope = like.new_zeros(R)
        self.length = like.new_zeros(R)  # of the step that is tried
        self.low, self.high = like.new_zeros(R), like.new_full((R,), torch.inf)
        self.trials = like.new_zeros(R)
        pairs = max(FEWEST_PAIRS, min(MEMORY, MOST_NUMBERS // like.shape[1]))
        self.steps = like.new_zeros(R, pairs, like.shape[1])
        self.changes = torch.zeros_like(self.steps)
        self.known = torch.zeros(R, pairs, dtype=torch.bool, device=like.device)
        self.given_up = torch.zeros(R, dtype=torch.bool, device=like.device)  # no direction leads down

    def memory(self) -> dict[str, Tensor]:
        """Everything that it remembers."""
        return {name: getattr(self, name) for name in REMEMBERED}

    def recall(self, memory: Mapping[str, Tensor]) -> None:
        """Go on from what was remembered; the parameters are where they were then."""
        for name in REMEMBERED:
            own = getattr(self, name)
            if memory[name].shape != own.shape:
                raise ValueError(f"{name} is {list(own.shape)} here, and {list(memory[name].shape)} there")
            setattr(self, name, memory[name].to(own))

    def keep(self, curvature: Curvature) -> None:
        """Leave the pairs for another training."""
        curvature.pairs = {name: value.clone() for name, value in self._pairs().items()}

    @torch.no_grad()
    def follow(self, group: Group) -> None:
        """Go where the leader of several processes goes.

        Loss and gradient are sums that all of them have; what each makes of these differs by rounding, which
        L-BFGS may enlarge a millionfold within ten steps.
        """
        group.same([self.x, self.direction, self.slope, self.length, self.low, self.high, self.trials])
        self._write(self.x)

    def inherit(self, curvature: Curvature) -> None:
        """Begin with the pairs of another training, if there are any and they are of as many numbers."""
        own, found = (
            {name: p.shape for name, p in pairs.items()} for pairs in (self._pairs(), curvature.pairs)
        )
        if own == found:
            self.cuts_moves = curvature.of_large_sample
            for name, value in self._pairs().items():
                setattr(self, name, curvature.pairs[name].to(value, copy=True))

    def _pairs(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in PAIRS}

    def refresh(self) -> None:
        """Begin anew where somebody else has moved the parameters."""
        if not torch.equal(self._flat(self.parameters), self._written):
            self.restart()

    @torch.no_grad()
    def decrement(self) -> Tensor:
        """½ gᵀHg [R]: what a whole step from the best points would gain, were the loss as the pairs say."""
        return -0.5 * self._dot(self.gradient, self._direction())

    @torch.no_grad()
    def place(self) -> None:
        """Put the parameters where the loss is wanted next."""
        self._write(self.x + self.length[:, None] * self.direction)

    @torch.no_grad()
    def advance(self, loss: Tensor, failed: Tensor) -> Tensor:
        """Take in the loss [R] and the gradients at the point tried; the best loss [R], NaN if there is none.

        The parameters are then at the best point of every replicate. ``failed``: losses that mean nothing.
        """
        loss = loss.double()
        gradient = self._flat([torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters])
        first = torch.isinf(self.loss)
        sound = torch.isfinite(loss) & torch.isfinite(gradient.sum(-1)) & ~failed
        slope = self._dot(gradient, self.direction)
        lower = sound & (loss <= self.loss + DECREASE * self.length * self.slope)
        steep = lower & (slope < CURVATURE * self.slope) & (self.trials < MOST_TRIALS) & ~first
        taken = ((lower & ~steep) | (first & sound)) & ~self.frozen
        # The bracket of those that go on looking along their direction.
        self.high = torch.where(lower, self.high, self.length)
        self.low = torch.where(steep, self.length, self.low)
        self.trials = self.trials + 1
        doubled, halved = 2 * self.length, 0.5 * (self.low + self.high)
        longer = torch.where(torch.isinf(self.high), doubled, halved)
        lost = ~lower & (self.trials >= MOST_TRIALS) & ~first
        new = taken | lost
        if self._any(taken):
            point = self.x + self.length[:, None] * self.direction
            self._remember(taken & ~first, point - self.x, gradient - self.gradient)
            t = taken[:, None]
            self.x = torch.where(t, point, self.x)
            self.gradient = torch.where(t, gradient, self.gradient)
            self.loss = torch.where(taken, loss, self.loss)
        # A direction that leads nowhere: forget, go down the gradient; if that was it, this is the end.
        plain = ~self.known.any(-1)
        self.given_up = (self.given_up | (lost & plain & sound)) & ~taken
        hopeless = (first & ~sound) | (lost & plain & ~sound)
        if self._any(lost):
            self._forget(lost)
        if self._any(new):
            self._turn(new)
        self.length = torch.where(new, self._first_length(), longer)
        self._write(self.x)
        return torch.where(hopeless, torch.nan, self.loss)

    def _turn(self, new: Tensor) -> None:
        """A new direction for those replicates."""
        direction = self._direction()
        if self.cuts_moves:
            most = LONGEST_MOVE * self.x.clamp_min(1.0)
            known = self.known.any(-1)[:, None]
            direction = torch.where(known, direction.clamp(-most, most), direction)
        slope = self._dot(self.gradient, direction)
        upward = slope >= 0
        direction = torch.where(upward[:, None], -self.gradient, direction)
        self.direction = torch.where(new[:, None], direction, self.direction)
        self.slope = self._dot(self.gradient, self.direction)
        zero = torch.zeros_like(self.low)
        self.low = torch.where(new, zero, self.low)
        self.high = torch.where(new, zero + torch.inf, self.high)
        self.trials = torch.where(new, zero, self.trials)

    def _first_length(self) -> Tensor:
        """1, or so that nothing goes too far; without a memory, as far as that."""
        furthest = (self.direction.abs() / self.x.clamp_min(1.0)).amax(-1).clamp_min(1e-300)
        most = LONGEST_MOVE / furthest
        return torch.where(self.known.any(-1), most.clamp_max(1.0), most)

    def _remember(self, which: Tensor, step: Tensor, change: Tensor) -> None:
        """The newest pair comes last; one without curvature is not worth it."""
        curved = self._dot(step, change) > 1e-10 * self._dot(change, change)
        which = which & curved
        everyone = not which.is_cuda and bool(which.all())
        for name, value in (("steps", step), ("changes", change)):
            old = getattr(self, name)
            moved = torch.cat([old[:, 1:], value[:, None]], 1)
            setattr(self, name, moved if everyone else torch.where(which[:, None, None], moved, old))
        moved = torch.cat([self.known[:, 1:], torch.ones_like(self.known[:, :1])], 1)
        self.known = torch.where(which[:, None], moved, self.known)

    def _forget(self, which: Tensor) -> None:
        """The pairs of those replicates; what is not known is zero."""
        self.known = self.known & ~which[:, None]
        for name in ("steps", "changes"):
            setattr(self, name, torch.where(which[:, None, None], 0.0, getattr(self, name)))

    def _direction(self) -> Tensor:
        """−H g by the compact form of H; pairs not known yet are zeros."""
        g, S, Y = self.gradient.unsqueeze(-1), self.steps, self.changes
        SY = S @ Y.mT
        R = SY.triu() + torch.diag_embed((~self.known).to(g))
        diagonal = self._curvatures().reciprocal()
        last_sy, last_yy = SY[:, -1, -1], self._dot(Y[:, -1], diagonal * Y[:, -1])
        gamma = torch.where(self.known[:, -1], last_sy / last_yy.clamp_min(1e-300), 1.0)
        diagonal = (gamma[:, None] * diagonal).unsqueeze(-1)
        HY = Y * diagonal.mT
        D = torch.diag_embed(SY.diagonal(dim1=-2, dim2=-1)) + Y @ HY.mT
        v = torch.linalg.solve_triangular(R, S @ g, upper=True)
        top = torch.linalg.solve_triangular(R.mT, D @ v - HY @ g, upper=False)
        d = diagonal * (g - Y.mT @ v) + S.mT @ top
        return -d.squeeze(-1)

    def _curvatures(self) -> Tensor:
        """The diagonal of a first Hessian, up to a factor, [R, N].

        What stands before a softplus is measured in units of its logarithm, u = value / slope. In these units
        the curvature of a number is the ratio of its changes and steps, root mean squares over the pairs; a
        few pairs say little of a single number, so that it shares what all numbers of its parameter say, as
        they share, the fewer they are the more, what all parameters say.
        """
        bent = self.x.clamp_min(-30.0)
        squared_units = torch.where(self._bent, softplus(bent) / torch.sigmoid(bent), 1.0).square()
        count = self.known.sum(-1, keepdim=True)
        shared = (TRUSTED_PAIRS / count.clamp_min(1)).clamp_min(SHARED)
        moved, changed = (pairs.square().sum(1) for pairs in (self.steps, self.changes))
        moved = self._shrunk(moved / squared_units, shared)
        changed = self._shrunk(changed * squared_units, shared)
        ratio = torch.where(count > 0, (changed / moved.clamp_min(1e-300)).sqrt().clamp_min(1e-150), 1.0)
        return ratio / squared_units

    def _shrunk(self, squares: Tensor, shared: Tensor) -> Tensor:
        """Squares plus a share [R, 1] of the mean of their parameter, which has one of the mean of all."""
        everyone, means = squares.mean(-1, keepdim=True), []
        for part in squares.split(self.sizes, 1):
            own = part.shape[1] / (part.shape[1] + shared)
            means.append((own * part.mean(-1, keepdim=True) + (1 - own) * everyone).expand_as(part))
        return squares + shared * torch.cat(means, 1)

    def _dot(self, a: Tensor, b: Tensor) -> Tensor:
        return (a * b).sum(-1)

    def _any(self, mask: Tensor) -> bool:
        """Whether it is worth computing at all; on a GPU always, because asking takes longer."""
        return mask.is_cuda or bool(mask.any())

    def _flat(self, tensors: Sequence[Tensor]) -> Tensor:
        return torch.cat([t.detach().reshape(self.replicates, -1).double() for t in tensors], 1)

    def _write(self, x: Tensor) -> None:
        parts = x.split(self.sizes, 1)
        for p, value in zip(self.parameters, parts, strict=True):
            p.copy_(value.reshape(p.shape))
        self._written = self._flat(self.parameters)  # in their precision
