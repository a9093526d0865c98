"""An endpoint whose groups have their collectives from different places."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

import torch
from typing_extensions import override

from plait.comm.contract import Endpoint, Group


class Collecting(Protocol):
    """The collectives of a group: see `Endpoint`."""

    def all_reduce(self, group: Group, tensor: torch.Tensor) -> torch.Tensor:
        """See `Endpoint`."""

    def reduce_scatter(self, group: Group, tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        """See `Endpoint`."""

    def all_gather(self, group: Group, tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        """See `Endpoint`."""

    def all_to_all(self, group: Group, pieces: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """See `Endpoint`."""

    def broadcast(self, group: Group, tensor: torch.Tensor, source: int) -> torch.Tensor:
        """See `Endpoint`."""

    def barrier(self, group: Group) -> None:
        """See `Endpoint`."""


class Routed(Endpoint):
    """What such endpoints share."""

    @abstractmethod
    def collectives_of(self, group: Group) -> Collecting:
        """Whose collectives the group uses: the same kind on all its ranks."""

    @override
    def all_reduce(self, group: Group, tensor: torch.Tensor) -> torch.Tensor:
        return self.collectives_of(group).all_reduce(group, tensor)

    @override
    def reduce_scatter(self, group: Group, tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        return self.collectives_of(group).reduce_scatter(group, tensor, sizes)

    @override
    def all_gather(self, group: Group, tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        return self.collectives_of(group).all_gather(group, tensor, sizes)

    @override
    def all_to_all(self, group: Group, pieces: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return self.collectives_of(group).all_to_all(group, pieces)

    @override
    def broadcast(self, group: Group, tensor: torch.Tensor, source: int) -> torch.Tensor:
        return self.collectives_of(group).broadcast(group, tensor, source)

    @override
    def barrier(self, group: Group) -> None:
        self.collectives_of(group).barrier(group)
