"""The data files of the presets: devices, links, clusters, models. Every figure has a source, named by a short word.

[documents]
ada = "NVIDIA Ada GPU architecture, whitepaper, 2022"

[presets.rtx-4090]
words = "NVIDIA GeForce RTX 4090"
memory_gib = 24
sources = { memory_gib = "ada", … }
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from pydantic import Field

from plait.errors import SpecError, nearest
from plait.spec.figures import DeviceFigures, Name, WireFigures
from plait.spec.tables import Table, validated

Sort = Literal["devices", "links", "clusters", "models"]

_FOLDER = "preset_data"
_BESIDE = ("words", "sources")


class PresetFile(Table):
    """A data file: titles of documents, and the presets' figures as they stand there."""

    documents: dict[str, Name]
    presets: dict[str, dict[str, Any]] = Field(min_length=1)


@cache
def read_presets(sort: Sort) -> PresetFile:
    """The file of one sort of presets."""
    text = (files("plait.spec") / _FOLDER / f"{sort}.toml").read_text(encoding="utf-8")
    return validated(PresetFile, tomllib.loads(text), f"presets of {sort}", SpecError)


def preset_values(sort: Sort, name: str) -> dict[str, Any]:
    """A preset's figures as they stand in its file. Errors: SpecError, with the nearest name."""
    presets = read_presets(sort).presets
    if name not in presets:
        raise SpecError(
            f"unknown {sort.removesuffix('s')} preset {name!r}: {nearest(name, presets)} "
            "(plait plan --list shows all of them)"
        )
    return {key: value for key, value in presets[name].items() if key not in _BESIDE}


def preset_words(sort: Sort) -> Mapping[str, str]:
    """Every preset's name, and what it is in a few words."""
    return {name: values["words"] for name, values in read_presets(sort).presets.items()}


def preset_sources(sort: Sort, name: str) -> Mapping[str, str]:
    """For each figure of a preset the title of the document that says it. Errors: SpecError."""
    preset_values(sort, name)
    table = read_presets(sort)
    return {key: table.documents[word] for key, word in table.presets[name].get("sources", {}).items()}


@cache
def device_figures(name: str) -> DeviceFigures:
    """The figures of a device preset. Errors: SpecError."""
    return validated(DeviceFigures, preset_values("devices", name), f"device preset {name!r}", SpecError)


@cache
def wire_figures(name: str) -> WireFigures:
    """Latency and bandwidth of a link preset. Errors: SpecError."""
    return validated(WireFigures, preset_values("links", name), f"link preset {name!r}", SpecError)
