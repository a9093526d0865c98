"""Which device a line was measured on, and what predicts it: a calibrated profile on its own device, or the plain one.

Lines name a device in a column, or the table's header does (`# hardware: ...`); where neither does, the table's own
device is taken and the note says so. A device with presets but no profile is predicted from its data sheet, "not
calibrated"; one never heard of is an error, as there are no figures for it.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from plait.costs.profiles import Profile, profile_named
from plait.costs.training import Machine
from plait.errors import SpecError, nearest
from plait.spec.presets import cluster_preset, device_preset, preset_names
from plait.validator.cells import Line, Record, has, where
from plait.validator.published import DEVICES_PER_HOST, a100_hosts
from plait.validator.table import spelling

COLUMNS = ("device", "gpu", "hardware", "accelerator", "gpu_type", "gpu_model", "machine")
CALIBRATED = ("a100-80gb", "a100")
"""The device whose profiles are calibrated: the data-sheet name, and its short one."""


class Ground(NamedTuple):
    """What a line is predicted with. `own`: it is the device that the profile was calibrated on."""

    machine: Machine
    profile: Profile
    own: bool
    words: str


def named_device(record: Record) -> str:
    """What the line, or its table's header, calls the device; empty where nothing does."""
    for column in record:
        if spelling(column) in COLUMNS and has(record, column) and not record[column].strip().isdigit():
            return record[column].strip()
    return record.hardware if isinstance(record, Line) else ""


def is_named(record: Record, device: str) -> bool:
    """True where the line names this device, or none."""
    given = named_device(record)
    return not given or _tokens(device) <= _tokens(given)


def ground(record: Record, profile: Profile, devices: int, adapters: int = DEVICES_PER_HOST) -> Ground:
    """What predicts a line of a table whose profile is of A100 80 GB. Errors: SpecError for a device never heard of."""
    given = named_device(record)
    if not given:
        return Ground(a100_hosts(devices, adapters), profile, True, "no device named: taken for A100 80 GB")
    found = preset_of(given)
    if found is None and isinstance(record, Line) and given == record.hardware:
        words = f"not calibrated: the header's hardware, {given!r}, names no device with figures; taken for A100 80 GB"
        return Ground(a100_hosts(devices, adapters), profile, False, words)
    if found is None:
        known = nearest(given.lower(), preset_names()["devices"])
        raise SpecError(f"{where(record)}: the device is {given!r}, of which Plait has no figures: {known}")
    if found in CALIBRATED:
        return Ground(a100_hosts(devices, adapters), profile, True, "")
    machine = _hosts(found, devices)
    if machine is None:
        raise SpecError(f"{where(record)}: the device is {given!r}, but Plait has no cluster of {found}")
    used = profile if found == "a100-40gb" else profile_named("plain")
    words = f"not calibrated: predicted from the data sheet of {found}, with profile {used.name!r}"
    return Ground(machine, used, False, words)


@lru_cache(maxsize=256)
def preset_of(words: str) -> str | None:
    """The device preset with all its parts in these words, the longest of several; A100 alone is the 80 GB one."""
    tokens = _tokens(words)
    names = [name for name in (*preset_names()["devices"], "a100") if _tokens(name) <= tokens]
    best = max(names, key=len, default=None)
    return CALIBRATED[0] if best in CALIBRATED else best


def _tokens(words: str) -> frozenset[str]:
    """Parts of a name, and figures with the unit after them: ``A100-SXM4 80 GB`` has ``a100`` and ``80gb``."""
    joined = re.sub(r"(\d+)\s*gi?b\b", r"\1gb", words.lower())
    joined = re.sub(r"\b(rtx|rx)(?=\d)", r"\1 ", joined)
    return frozenset(part for part in re.split(r"[^0-9a-z]+", joined) if part)


@lru_cache(maxsize=64)
def _hosts(device: str, devices: int) -> Machine | None:
    name = device if device in preset_names()["clusters"] else device.rpartition("-")[0]
    if name not in preset_names()["clusters"]:
        return None
    network = cluster_preset(name, 2 * DEVICES_PER_HOST).network
    if network is None:
        return None
    return Machine(device_preset(device), DEVICES_PER_HOST, -(-devices // DEVICES_PER_HOST), network)
