"""Processes that work on one problem: sums over all of them, in float64, and what the leader says.

`current_group` is the default process group of `torch.distributed` where the user has initialised one (under
torchrun: ``torch.distributed.init_process_group("gloo")``), otherwise a group of one, for which every sum is
the value itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T", bound="Tensor | None")


class Group:
    """A group of one process: its sums are its own."""

    rank = 0
    world = 1

    @property
    def leads(self) -> bool:
        """Whether this is the process whose share holds what all have in common."""
        return self.rank == 0

    def add(self, tensors: Sequence[T]) -> list[T]:
        """The sums of tensors over all processes, in their own precision; None stays None."""
        return list(tensors)

    def same(self, tensors: Sequence[Tensor]) -> None:
        """Give the tensors of every process the values of the leader's."""

    def of_leader(self, value: bytes | None) -> bytes | None:
        """The leader's bytes, for every process."""
        return value

    def rows(self, own: Tensor) -> Tensor:
        """Matrices [n, k] of all processes below each other, in the order of the ranks; n may be 0."""
        return own


class Processes(Group):
    """The default process group of `torch.distributed`; one packed all-reduce for each call."""

    def __init__(self) -> None:
        import torch.distributed as distributed

        self.rank, self.world = distributed.get_rank(), distributed.get_world_size()
        on_cuda = "nccl" in str(distributed.get_backend())
        self.device = torch.device("cuda", torch.cuda.current_device()) if on_cuda else torch.device("cpu")

    def add(self, tensors: Sequence[T]) -> list[T]:
        given = [t for t in tensors if t is not None]
        packed = torch.cat([t.detach().reshape(-1).to(self.device, torch.float64) for t in given])
        self._all_reduce(packed)
        parts = iter(packed.split([t.numel() for t in given]))
        return [None if t is None else next(parts).reshape(t.shape).to(t) for t in tensors]  # type: ignore[misc]

    @torch.no_grad()
    def same(self, tensors: Sequence[Tensor]) -> None:
        if not tensors:
            return
        shared = self.add(
            [t.double() if self.leads else torch.zeros_like(t, dtype=torch.float64) for t in tensors]
        )
        for t, value in zip(tensors, shared, strict=True):
            t.copy_(value)

    def of_leader(self, value: bytes | None) -> bytes | None:
        import torch.distributed as distributed

        found = [value]
        distributed.broadcast_object_list(found, src=0, device=self.device)
        return found[0]

    def rows(self, own: Tensor) -> Tensor:
        sizes = torch.zeros(self.world, 2, dtype=torch.float64)
        sizes[self.rank] = torch.tensor(own.shape, dtype=torch.float64)
        (sizes,) = self.add([sizes])
        counts = sizes[:, 0].long().tolist()
        start, width = sum(counts[: self.rank]), int(sizes[:, 1].max())
        together = own.new_zeros(sum(counts), width, dtype=torch.float64)
        together[start : start + len(own), : own.shape[1]] = own
        (together,) = self.add([together])
        return together.to(own)

    def _all_reduce(self, packed: Tensor) -> None:
        import torch.distributed as distributed

        distributed.all_reduce(packed)


def current_group() -> Group:
    """The processes that `torch.distributed` connects, or this one alone."""
    import torch.distributed as distributed

    if distributed.is_available() and distributed.is_initialized():
        return Processes()
    return Group()


def launched_processes() -> int:
    """How many processes torchrun started; 1 where it did not."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


@contextmanager
def launched() -> Iterator[Group]:
    """The processes that torchrun started, connected while this is open; else the current group.

    By NCCL where there is a GPU for each, otherwise by gloo.
    """
    import torch.distributed as distributed

    if launched_processes() == 1 or (distributed.is_available() and distributed.is_initialized()):
        yield current_group()
        return
    local = int(os.environ.get("LOCAL_RANK", "0"))
    on_cuda = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if on_cuda:
        torch.cuda.set_device(local)
    distributed.init_process_group("nccl" if on_cuda else "gloo")
    try:
        yield current_group()
    finally:
        distributed.destroy_process_group()
