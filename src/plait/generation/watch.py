"""What a caller may want to hear while a generation is made ready and runs."""

from __future__ import annotations

from typing import Protocol

from plait.generation.protocol import Token
from plait.plans.plan import Plan
from plait.text.tokenizer import Tokenizer


class Watch(Protocol):
    """Follows a generation."""

    def say(self, text: str) -> None:
        """Something takes a while, and this is what."""

    def planned(self, plan: Plan, tokenizer: Tokenizer, requests: int) -> None:
        """The plan is made, and will run."""

    def loading(self, rank: int, done_bytes: int, total_bytes: int) -> None:
        """A rank has loaded so many bytes of its weights."""

    def ready(self) -> None:
        """All ranks are loaded."""

    def token(self, token: Token) -> None:
        """A token has come."""


class Unwatched:
    """Listens to nothing."""

    def say(self, text: str) -> None:
        """See `Watch`."""

    def planned(self, plan: Plan, tokenizer: Tokenizer, requests: int) -> None:
        """See `Watch`."""

    def loading(self, rank: int, done_bytes: int, total_bytes: int) -> None:
        """See `Watch`."""

    def ready(self) -> None:
        """See `Watch`."""

    def token(self, token: Token) -> None:
        """See `Watch`."""
