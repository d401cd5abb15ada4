"""How a step is executed: eagerly, compiled, or captured once as a CUDA graph and replayed.

The same numbers every way, to rounding. `auto` captures on CUDA, always; on a CPU it compiles what has no
direct step (`fused.direct`) and so many steps to come that the compiler's seconds are won back.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from duogp.inference.natural import NaturalGradient
from duogp.kernels.deep_kernel import Deep
from duogp.kernels.foreign import Foreign
from duogp.numerics.networks import Linear
from duogp.numerics.parameters import Positive
from duogp.training.adam import BETAS, Adam
from duogp.training.lbfgs import LBFGS, Curvature
from duogp.training.problems import Problem

logger = logging.getLogger("duogp")

Backend = Literal["auto", "eager", "compile", "graph"]
Optimiser = Literal["adam", "lbfgs"]

#: Steps to come from which compiling pays. It takes 10 to 20 seconds and saves 2 to 8 milliseconds of a step
#: (two cores; 20 to 800 inducing points: won back after 1,500 to 8,500 steps). `auto` compiles what that was
#: measured for, coupled bases and decoupled conditionals.
COMPILED_STEPS = 10_000


class StepBackend:
    """Optimiser steps on a problem, executed eagerly."""

    def __init__(
        self,
        problem: Problem,
        parameters: list[Tensor],
        learning_rate: float,
        natural: NaturalGradient | None = None,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = BETAS,
    ) -> None:
        self.problem = problem
        self.parameters = parameters
        self.natural = natural
        own = {id(p) for p in natural.parameters} if natural is not None else set()
        # Adam needs one tensor even where the natural gradient moves everything.
        idle = nn.Parameter(torch.zeros((), device=parameters[0].device))
        descended = [p for p in parameters if id(p) not in own] or [idle]
        # Weights of networks decay, nothing else does.
        decaying = {id(p) for p in network_weights(problem.model)} if weight_decay else set()
        decays = [weight_decay * (id(p) in decaying) for p in descended]
        self.adam = Adam(descended, learning_rate, decays, betas)

    def state(self) -> list[Tensor]:
        """Every tensor that a step changes, for snapshots: parameters and what the optimisers remember."""
        natural = [] if self.natural is None else self.natural.state
        return [*self.parameters, *natural, *self.adam.state()]

    def memory(self) -> dict[str, Tensor]:
        """What a checkpoint holds beside `state`."""
        return {}

    def recall(self, memory: Mapping[str, Tensor]) -> None:
        """Go on from a checkpoint's `memory`."""

    def step(self) -> Tensor:
        """Gradients, then Adam and the natural gradient from the same point."""
        self.adam.zero_grad()
        if self.natural is not None:
            self.natural.zero_grad()
        loss = self.problem.backward()
        if self.natural is not None:
            self.natural.compute()
        self.adam.step()
        if self.natural is not None:
            self.natural.write()
        return loss

    def run(self) -> Tensor:
        """One step on the selected rows; the loss [R] stays on the device."""
        return self.step()

    def set_learning_rate(self, value: float) -> None:
        self.adam.rate = value

    def restart(self) -> None:
        """Called after parameters were put back."""

    def refresh(self) -> None:
        """Called after others may have moved parameters."""

    def freeze(self, replicates: Tensor) -> None:
        """Replicates that shall move no more, [R]; where that is possible."""

    def given_up(self) -> Tensor | None:
        """Replicates without a descent direction, [R]; None for solvers that do not report it."""
        return None

    def promised(self) -> Tensor | None:
        """What the next step promises to gain, [R]; None where nobody knows."""
        return None

    def inherit(self, curvature: Curvature) -> None:
        """Begin with what another training found, where that is of use."""

    def keep(self, curvature: Curvature) -> None:
        """Leave what was found for another training."""


class QuasiNewton(StepBackend):
    """L-BFGS on a deterministic loss: a step is an evaluation, and leaves each replicate's best point."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        model = self.problem.model
        self.lbfgs = LBFGS(self.parameters, model.replicates, bent_parameters(model))

    def state(self) -> list[Tensor]:
        return list(self.parameters)  # what it remembers is forgotten, see `restart`

    def memory(self) -> dict[str, Tensor]:
        return self.lbfgs.memory()

    def recall(self, memory: Mapping[str, Tensor]) -> None:
        self.lbfgs.recall(memory)

    def step(self) -> Tensor:
        self.adam.zero_grad()
        return self.problem.backward()

    def run(self) -> Tensor:
        self.lbfgs.place()
        return self.take(super().run())

    def take(self, loss: Tensor) -> Tensor:
        """A factorisation that fails at a point tried is answered by a shorter step, and no failure."""
        failed = self.problem.model.numerics.failed
        best = self.lbfgs.advance(loss, failed)
        if self.problem.group.world > 1:
            self.lbfgs.follow(self.problem.group)
        failed.logical_and_(~torch.isfinite(best))
        return best

    def restart(self) -> None:
        self.lbfgs.restart()

    def refresh(self) -> None:
        self.lbfgs.refresh()

    def freeze(self, replicates: Tensor) -> None:
        self.lbfgs.frozen = replicates

    def given_up(self) -> Tensor | None:
        return self.lbfgs.given_up

    def promised(self) -> Tensor | None:
        return self.lbfgs.decrement()

    def inherit(self, curvature: Curvature) -> None:
        self.lbfgs.inherit(curvature)

    def keep(self, curvature: Curvature) -> None:
        self.lbfgs.keep(curvature)


class Compiled(StepBackend):
    """The loss and its gradient through `torch.compile`, as one graph for the one shape that batches have.

    See `duogp.training.joint`.
    """

    def __init__(self, problem: Problem, *args: Any, must: bool = True, **kwargs: Any) -> None:
        super().__init__(problem, *args, **kwargs)
        self._must = must
        self._tried = False
        problem.compile()

    def run(self) -> Tensor:
        if self._tried:
            return self.step()
        self._tried = True
        try:
            return self.step()  # gradients come before anything is moved: a failure leaves all as it was
        except Exception as error:
            if self._must:
                raise RuntimeError(
                    f"backend='compile' is not possible here ({str(error).splitlines()[0]}); use 'eager'"
                ) from error
            logger.info("steps stay eager, compiling them failed: %s", error)
            self.problem.compile(False)
            return self.step()


class CapturedGraph(StepBackend):
    """The whole step (gather, loss, backward, Adam) as one CUDA graph; the learning rate is on the device."""

    WARM_UP_STEPS = 3
    graph: torch.cuda.CUDAGraph | None = None
    loss: Tensor | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        device = self.parameters[0].device
        self.adam.rate = self.rate = torch.tensor(self.adam.rate, dtype=torch.float32, device=device)

    def run(self) -> Tensor:
        with torch.cuda.device(self.parameters[0].device):  # graphs belong to the current device
            if self.graph is None:
                self._capture()
            assert self.graph is not None and self.loss is not None
            self.graph.replay()
        return self.loss

    def set_learning_rate(self, value: float) -> None:
        self.rate.fill_(value)

    def _capture(self) -> None:
        before = [t.detach().clone() for t in self.state()]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        # Lazy initialisation (workspaces, optimiser state) must not be captured: it happens here.
        with torch.cuda.stream(stream):
            for _ in range(self.WARM_UP_STEPS):
                self.step()
        torch.cuda.current_stream().wait_stream(stream)
        with torch.no_grad():
            for t, value in zip(self.state(), before, strict=True):
                t.copy_(value)
        if self.natural is not None:
            self.natural.zero_grad()
        self.problem.model.numerics.failed.zero_()  # what failed in the discarded steps is forgotten
        self.adam.zero_grad()
        self.graph = torch.cuda.CUDAGraph()
        # Threads that read ahead may allocate meanwhile: only this one is watched.
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            self.loss = self.step()


class CapturedQuasiNewton(QuasiNewton, CapturedGraph):
    """L-BFGS whose evaluations are replayed; what it makes of them is not captured."""

    def run(self) -> Tensor:
        self.lbfgs.place()
        return self.take(CapturedGraph.run(self))


def network_weights(model: nn.Module) -> list[Tensor]:
    """The weight matrices of networks, ours and a user's; biases and scales are not among them."""
    out: list[Tensor] = []
    for part in model.modules():
        if isinstance(part, Linear):
            out.append(part.weight)
        elif isinstance(part, Deep) and isinstance(part.extractor, Foreign):
            events = part.extractor.event_dims
            named = part.extractor.module.named_parameters()
            out += [p for name, p in named if events[name] >= 2]
    return out


def bent_parameters(model: nn.Module) -> list[Tensor]:
    """The raw parameters of a model that stand before a softplus."""
    return [
        part.raw for part in model.modules() if isinstance(part, Positive) and part.transform == "softplus"
    ]


def is_capturable(model: nn.Module) -> bool:
    """Modules written elsewhere (gpytorch kernels, a user's mean) may ask the host; ours do not."""
    return not any(isinstance(part, Foreign) for part in model.modules())


def make_backend(
    name: Backend,
    problem: Problem,
    parameters: list[Tensor],
    learning_rate: float,
    natural: NaturalGradient | None = None,
    *,
    weight_decay: float = 0.0,
    betas: tuple[float, float] = BETAS,
    steps: int = 0,
    optimiser: Optimiser = "adam",
) -> StepBackend:
    """The backend of that name; "auto" decides by the device, the model and ``steps``, those to come."""
    newton = optimiser == "lbfgs"
    on_cuda = parameters[0].is_cuda
    capturable = is_capturable(problem.model) and problem.can_capture
    given = problem, parameters, learning_rate, natural, weight_decay, betas
    if name not in get_args(Backend):
        raise ValueError(f"backend must be one of {', '.join(map(repr, get_args(Backend)))}, got {name!r}")
    if name == "graph" and not on_cuda:
        raise ValueError("backend 'graph' needs parameters on a CUDA device")
    if name == "graph" and not problem.can_capture:
        raise ValueError("backend 'graph' is not possible with several processes: use 'eager'")
    if name == "graph" or (name == "auto" and on_cuda and capturable):
        return CapturedQuasiNewton(*given) if newton else CapturedGraph(*given)
    compilable = natural is None and problem.can_compile
    if name == "compile":
        if not compilable:
            raise ValueError("backend 'compile' is for minibatch steps without natural gradients")
        return Compiled(*given)
    if newton:
        return QuasiNewton(*given)
    long = steps >= COMPILED_STEPS and problem.model.basis.pays_to_compile
    # Last, for it makes the memory of the step.
    if name == "auto" and compilable and capturable and not on_cuda and long and not problem.has_direct_step:
        return Compiled(*given, must=False)
    return StepBackend(*given)
