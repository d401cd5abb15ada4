"""Checkpoints of a training by several processes: the leader writes and reads them, all go on from them."""

from __future__ import annotations

from duogp.numerics.groups import Group
from duogp.training.checkpoint import Checkpoints, Slot, Snapshot, decode, encode


class SharedSlot(Slot):
    """The checkpoints of one training. ``owner``: of the leader; None: the others write nothing."""

    def __init__(self, owner: Checkpoints | None, name: str, group: Group) -> None:
        self.group = group
        self.own = None if owner is None else owner.slot(name)

    def due(self, step: int) -> bool:
        return self.own is not None and self.own.due(step)

    def save(self, step: int, snapshot: Snapshot) -> None:
        if self.own is not None:
            self.own.save(step, snapshot)

    def load(self) -> Snapshot | None:
        """The newest sound checkpoint of the leader."""
        found = None if self.own is None else self.own.load()
        if self.group.world == 1:
            return found
        data = self.group.of_leader(None if found is None else encode(found, {}))
        return None if data is None else decode(data)[0]
