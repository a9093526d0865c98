"""What has arrived on a link and was not asked for yet: matched by tag, in order where a tag comes twice."""

from __future__ import annotations

from collections import deque

import torch

from plait.comm.contract import Tag


class Inbox:
    """The unclaimed messages of one directed link. Holds at most the link's capacity: the sender sees to that."""

    def __init__(self) -> None:
        self.epoch = 0
        self._by_tag: dict[Tag, deque[torch.Tensor]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_tag)

    def put(self, tag: Tag, tensor: torch.Tensor) -> bool:
        """Keep a message; False where it is of an older epoch than asked for before, and therefore dropped."""
        if tag.epoch < self.epoch:
            return False
        self._by_tag.setdefault(tag, deque()).append(tensor)
        return True

    def take(self, tag: Tag) -> torch.Tensor | None:
        """The first message with this tag, if any."""
        waiting = self._by_tag.get(tag)
        if waiting is None:
            return None
        tensor = waiting.popleft()
        if not waiting:
            del self._by_tag[tag]
        return tensor

    def move_to(self, epoch: int) -> int:
        """From now on only this epoch and later ones are kept. Returns how many messages that dropped."""
        self.epoch = epoch
        old = [tag for tag in self._by_tag if tag.epoch < epoch]
        return sum(len(self._by_tag.pop(tag)) for tag in old)
