"""Randomness as a counter hash: the same number for the same key, whatever the mesh, the batch or the device.

The mix is the finaliser of SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators",
OOPSLA 2014; constants as in Vigna's splitmix64.c), in wrapping int64 with logical shifts.
"""

from __future__ import annotations

import torch
from torch import Tensor

_GAMMA = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_WORD = (1 << 64) - 1


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def fold(*values: int) -> int:
    """One 64-bit key (as a signed integer) of several integers; their order counts."""
    key = 0
    for value in values:
        word = (key + _GAMMA + (value & _WORD)) & _WORD
        word = ((word ^ (word >> 30)) * _FIRST) & _WORD
        word = ((word ^ (word >> 27)) * _SECOND) & _WORD
        key = word ^ (word >> 31)
    return _signed(key)


def _shift(words: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64: torch's own keeps the sign."""
    return (words >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def mix(key: int, counters: Tensor) -> Tensor:
    """64 random bits for every counter; equals ``fold`` of (what made the key, counter). int64 in, int64 out."""
    words = counters + _signed((key + _GAMMA) & _WORD)
    words = (words ^ _shift(words, 30)).mul_(_signed(_FIRST))
    words = (words ^ _shift(words, 27)).mul_(_signed(_SECOND))
    return words ^ _shift(words, 31)


def gumbel(key: int, counters: Tensor) -> Tensor:
    """Gumbel noise for every counter, float32.

    53 bits make the exponential variable, small values with full precision, since they are the large noises that
    decide. The logarithms are taken in float64, so that a rounding that differs by device does not reach float32.
    """
    bits = _shift(mix(key, counters), 11).bitwise_or_(1)
    exponential = bits.to(torch.float64).mul_(-(2.0**-53)).log1p_().neg_()
    return exponential.log_().neg_().to(torch.float32)
