"""What calls of the backend of torch.distributed (`process_group`) return: work that is complete, or that moves on."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.futures import Future
from typing_extensions import override


class Finished(dist.Work):
    """What a collective returns: it is complete."""

    def __init__(self, tensors: object) -> None:
        super().__init__()
        self._tensors = tensors

    @override
    def wait(self, timeout: timedelta | None = None) -> bool:
        return True

    @override
    def is_completed(self) -> bool:
        return True

    @override
    def is_success(self) -> bool:
        return True

    @override
    def result(self) -> Any:
        return self._tensors

    @override
    def get_future(self) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(self._tensors)
        return future


class Message(Finished):
    """A send or receive that moves on while its group waits, and is complete when `move` has once returned True."""

    def __init__(
        self, tensors: object, move: Callable[[], bool], wait: Callable[[Message, float | None], None]
    ) -> None:
        super().__init__(tensors)
        self._move, self._wait = move, wait
        self._done = False

    def moved(self) -> bool:
        """Try to complete it."""
        self._done = self._done or self._move()
        return self._done

    @override
    def wait(self, timeout: timedelta | None = None) -> bool:
        if not self._done:
            self._wait(self, timeout.total_seconds() if timeout else None)
        return True

    @override
    def is_completed(self) -> bool:
        return self._done

    @override
    def is_success(self) -> bool:
        return self._done

    @override
    def get_future(self) -> Future[Any]:
        self.wait()
        return super().get_future()
