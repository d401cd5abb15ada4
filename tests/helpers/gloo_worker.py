"""One of several processes of a test: fits, evaluates the bound, and leaves what it found in a file.

python gloo_worker.py RANK WORLD STORE OUT [nccl]   (WORLD 0: no group at all)
"""

from __future__ import annotations

import sys
import warnings
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import torch

import duogp
from duogp.data.sources import ArraySource
from duogp.fitting import streamed
from duogp.fitting.streamed import fit_source
from duogp.numerics.groups import current_group
from duogp.posterior.statistics import scaled_batch
from duogp.training import CheckpointOptions
from duogp.training.stream import Stream, StreamedClosedForm

METHODS = ("svgp", "vfitc", "odsvgp", "solvegp")
#: Methods and settings of fits by minibatches.
MINIBATCHES = {
    "svgp": ("svgp", {"solver": "stochastic"}),
    "svgp, warm": ("svgp", {"solver": "stochastic", "warm_start": 5, "warm_start_rows": 50}),
    "dcsvgp": ("dcsvgp", {}),
    "orthnat": ("orthnat", {}),
    "early stopping": ("orthnat", {"validation_fraction": 0.3, "patience": 1, "epochs": 30}),
    "robust-max": ("svgp", {"labels": True, "likelihood": "robust-max"}),
    # Draws are those of a row's place modulo 128, and 128 are the rows of a lane.
    "softmax": ("odsvgp", {"labels": True, "likelihood": "softmax", "batch_size": 256}),
    # All rows are in one chunk, and one process has none; the zeros in its place have no density.
    "gamma": ("svgp", {"likelihood": "gamma", "chunk_rows": 1000, "epochs": 3}),
    "deep kernel": ("svgp-dkl", {"widths": [6, 2], "validation_fraction": 0.2}),
}


def table(n: int = 240):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 3))
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * rng.normal(size=n)
    return X, y, rng.uniform(0.05, 0.3, n), rng.uniform(0.5, 2.0, n)


def bound(method: str, source: ArraySource, X, y, **given) -> list[torch.Tensor]:
    """Loss, optimum and gradients of a model at its start, over the rows of all processes."""
    gp = duogp.fit(X, y, method, solver="closed-form", num_inducing=9, epochs=2, dtype="float64", **given)
    scaled = partial(
        scaled_batch,
        x_scaler=gp.x_scaler,
        y_scaler=gp.y_scaler,
        columns=gp.columns,
        dtype=torch.float64,
        device=gp.model.beta1.device,
    )
    stream = Stream(
        source,
        scaled,
        keep=lambda chunk: np.ones(len(chunk.x), dtype=bool),
        sample=next(source.chunks()),
        rows=16,
        group=current_group(),
    )
    objective = StreamedClosedForm(gp.model.train(), stream).objective
    loss = objective.backward()
    found = [p.grad for _, p in sorted(gp.model.named_parameters()) if p.grad is not None]
    return [t.cpu() for t in (loss, objective.solve().mean, *found)]


def minibatches(
    method: str, *, labels: bool = False, callbacks=(), checkpoint=None, chunk_rows: int = 32, **settings
) -> list[torch.Tensor]:
    """A fit on two lanes: predictions, losses of the epochs, where it stopped."""
    X, y, _, weight = table(256)
    given = {"labels": True} if labels else {"sample_weight": weight}
    y = np.where(y > 0.5, "high", np.where(y < -0.5, "low", "none")) if labels else y
    y = np.exp(y) if settings.get("likelihood") == "gamma" else y
    source = ArraySource(X, y, chunk_rows=chunk_rows, **given)
    base = {"num_inducing": 9, "dtype": "float64", "batch_size": 64, "epochs": 6}
    given = {"lanes": 2, "callbacks": callbacks, "checkpoint": checkpoint}
    gp = fit_source(source, method, settings={**base, **settings}, **given)
    p = gp.predict(X)
    found = [p.probabilities] if labels else [p.mean, p.variance]
    history = gp.history
    facts = [[r.loss for r in history.records], [history.best_epoch or 0, history.rollbacks]]
    facts.append([history.validation_nll or 0.0])
    # The loss of an epoch that was undone is no number.
    return [torch.as_tensor(np.nan_to_num(np.asarray(v, dtype=np.float64))) for v in (*found, *facts)]


class Ended(Exception):
    """The end of a fit before its time."""


def goes_on(folder: Path) -> list[torch.Tensor]:
    """A fit that ends in its fourth epoch, and goes on from the checkpoint that the leader wrote."""

    def end(progression) -> None:
        if progression.epoch == 4:
            raise Ended

    given = {"checkpoint": CheckpointOptions.of(folder, 1e6, 3), "solver": "stochastic"}
    with suppress(Ended):
        minibatches("dcsvgp", callbacks=[end], **given)
    return minibatches("dcsvgp", **given)


def rolls_back() -> list[torch.Tensor]:
    """The last process says that a factorisation failed: all go back to their last good state."""
    group = current_group()

    def fail(progression) -> None:
        if progression.epoch == 3 and group.rank == group.world - 1:
            progression.model.numerics.failed.fill_(True)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return minibatches("svgp", solver="stochastic", callbacks=[fail])


def apart() -> list[torch.Tensor]:
    """A fit in closed form whose processes have made different things of the sample, as if by rounding."""
    X, y, _, weight = table()
    group, train = current_group(), streamed.train

    def disturbed(*args, **kwargs):
        found = train(*args, **kwargs)
        if group.rank and "curvature" in kwargs:  # that of the sample
            kwargs["curvature"].scale(1.5)
        return found

    streamed.train = disturbed
    source = ArraySource(X, y, sample_weight=weight, chunk_rows=25)
    try:
        gp = duogp.fit(source, method="sgpr", num_inducing=9, dtype="float64", epochs=6)
    finally:
        streamed.train = train
    p = gp.predict(X)
    return [torch.as_tensor(v) for v in (p.mean, p.variance, [r.loss for r in gp.history.records])]


def work(folder: Path) -> dict[str, list[torch.Tensor]]:
    """All that is compared between one process and several."""
    X, y, noise, weight = table()
    out = {m: bound(m, ArraySource(X, y, chunk_rows=25), X, y) for m in METHODS}
    out["one chunk for all"] = bound("svgp", ArraySource(X, y, chunk_rows=1000), X, y)
    rows = {"noise": noise, "sample_weight": weight}
    out["noise and weights"] = bound("svgp", ArraySource(X, y, **rows, chunk_rows=25), X, y, **rows)
    source = ArraySource(X, y, sample_weight=weight, chunk_rows=25)
    for name, (method, settings) in MINIBATCHES.items():
        out[f"fit by minibatches, {name}"] = minibatches(method, **settings)
    out["fit that rolls back"] = rolls_back()
    out["fit that goes on"] = goes_on(folder)
    out["fit of processes that differ"] = apart()
    # L-BFGS divides by differences of gradients. Some of odsvgp are zero but for rounding: on some CPUs it
    # makes 1e-6 of 1e-11. Adam shows that sums and gradients are the same.
    for method, optimizer in (("sgpr", "lbfgs"), ("odsvgp", "adam")):
        settings = {"num_inducing": 9, "dtype": "float64", "epochs": 6, "validation_fraction": 0.2}
        gp = duogp.fit(source, method=method, optimizer=optimizer, **settings)
        p = gp.predict(X)
        nll = torch.tensor(gp.history.validation_nll, dtype=torch.float64)
        out[f"fit of {method}"] = [torch.as_tensor(p.mean), torch.as_tensor(p.variance), nll]
    return out


if __name__ == "__main__":
    rank, world, store, target, *backend = sys.argv[1:]
    torch.set_num_threads(1)
    if world == "0":
        torch.save(work(Path(target).with_suffix(".kept")), target)
    else:
        torch.distributed.init_process_group(
            *(backend or ["gloo"]), init_method=f"file://{store}", rank=int(rank), world_size=int(world)
        )
        torch.save(work(Path(target).with_suffix(".kept")), target)
        torch.distributed.destroy_process_group()
