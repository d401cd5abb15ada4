"""Several processes (gloo) find what one finds: bound, gradients, optimum, whole fits by all solvers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from helpers import gloo_worker

#: Sums in another order, in float64, relative to the largest number of a tensor.
TOLERANCE = 1e-9
#: (rank, world); a world of 0 is one process without a group
PROCESSES = [(0, 0), (0, 2), (1, 2)]

pytestmark = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
    reason="torch.distributed without gloo",
)


def run(folder: Path, processes: list[tuple[int, int]], *backend: str) -> list[dict]:
    """What each process found; one thread each, as starts are fitted. Gloo is for CPUs."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    if not backend:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    if sys.platform == "linux":
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    script = str(Path(gloo_worker.__file__))
    targets = [folder / f"{rank}-{world}.pt" for rank, world in processes]
    running = [
        subprocess.Popen(
            [sys.executable, script, str(rank), str(world), str(folder / "store"), str(target), *backend],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for (rank, world), target in zip(processes, targets, strict=True)
    ]
    try:
        ends = [process.communicate(timeout=600)[1] for process in running]
    finally:
        for process in running:
            process.kill()
    assert all(process.returncode == 0 for process in running), "\n".join(ends)
    return [torch.load(target) for target in targets]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What one process found, and each of two that work together."""
    return run(tmp_path_factory.mktemp("gloo"), PROCESSES)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_one_rank_of_nccl_is_no_distribution(tmp_path):
    """Bit for bit."""
    alone, single = run(tmp_path, [(0, 0), (0, 1)], "nccl")
    for name, values in alone.items():
        assert all(torch.equal(a, b) for a, b in zip(values, single[name], strict=True)), name


def test_several_processes_find_what_one_finds(found):
    alone, *together = found
    for rank, own in enumerate(together):
        assert own.keys() == alone.keys()
        for name, expected in alone.items():
            assert len(own[name]) == len(expected) >= 3
            assert all(bool(torch.isfinite(v).all()) for v in expected)
            for i, (ours, theirs) in enumerate(zip(own[name], expected, strict=True)):
                where = f"rank {rank}, {name}, value {i}"
                largest = TOLERANCE * max(1.0, float(theirs.abs().max()))
                message = lambda text, where=where: f"{where}: {text}"  # noqa: E731
                assert_close(ours, theirs, rtol=TOLERANCE, atol=largest, msg=message)


def test_all_ranks_end_with_the_same_model(found):
    _, first, *others = found
    for name, values in first.items():
        if name.startswith("fit"):
            for other in others:
                assert all(torch.equal(a, b) for a, b in zip(values, other[name], strict=True))


def test_all_roll_back_when_one_fails(found):
    *_, facts, _ = found[0]["fit that rolls back"]
    _, rollbacks = facts.tolist()
    assert rollbacks >= 1


def test_a_fit_of_several_goes_on_from_the_checkpoint_of_the_leader(found):
    for own in found:
        mean, variance, _, *rest = own["fit that goes on"]
        expected = own["fit by minibatches, dcsvgp"]
        assert torch.equal(mean, expected[0]) and torch.equal(variance, expected[1])
        assert all(torch.equal(a, b) for a, b in zip(rest, expected[3:], strict=True))
