"""Where the ranks of a plan run, and how far their hosts' clocks are off."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from plait.timeline.timeline import Clock


class Places(NamedTuple):
    """`hosts`: each rank's, where there is more than this one. `clocks`: of every host but rank 0's."""

    hosts: Mapping[int, str] = MappingProxyType({})
    clocks: Mapping[str, Clock] = MappingProxyType({})


HERE = Places()
"""All ranks on this host."""
