"""How one request's tokens are drawn."""

from __future__ import annotations

import math
from dataclasses import dataclass

from plait.errors import RequestError


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """`temperature` 0 takes the likeliest token. Of the tempered distribution `top_k` keeps the likeliest k (0: all),
    then `top_p` the fewest that hold that share of what is left (1: all). `seed` makes the draw repeatable.

    Raises:
        RequestError: a value that no distribution can be made with.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise RequestError(
                f"temperature is {self.temperature}; it must be a finite number, 0 or above "
                "(0 takes the likeliest token; type --temperature 0.7 for varied text)"
            )
        if not 0 < self.top_p <= 1:
            raise RequestError(f"top_p is {self.top_p}; it must be above 0 and at most 1 (type --top-p 1 to keep all)")
        if self.top_k < 0:
            raise RequestError(f"top_k is {self.top_k}; it must be 0 or above (type --top-k 0 to keep all tokens)")
        if not 0 <= self.seed < 2**63:
            raise RequestError(f"seed is {self.seed}; it must be from 0 to 2**63 - 1 (type --seed 0)")

    @property
    def greedy(self) -> bool:
        """True where no randomness is used."""
        return self.temperature == 0
