"""What a model looks like, from whatever a person names it by: a preset, the demo, a config, a directory, a GGUF file.

Nothing but the config or the file's header is read: a model can be planned without its weights, and without torch.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from plait.errors import SpecError, WeightsError, nearest
from plait.spec.gguf import spec_from_gguf
from plait.spec.huggingface import spec_from_config
from plait.spec.inline import inline_spec, is_inline
from plait.spec.model import ModelSpec
from plait.spec.preset_files import preset_words
from plait.spec.presets import model_preset
from plait.weights.gguf_header import parse_gguf
from plait.weights.index import rope_factors
from plait.weights.source import DEMO, is_hub_id, looks_like_path, resolve_model

_DEMO_PRESET = "smollm2-135m"


def model_spec(name: str) -> ModelSpec:
    """The model's shape, called `name`, so that a plan of it finds it again. Errors: SpecError, WeightsError."""
    return replace(_spec(name), name=name)


def _spec(name: str) -> ModelSpec:
    if name in preset_words("models"):
        return model_preset(name)
    if name == DEMO:
        return _demo()
    if is_inline(name):
        return inline_spec(name)
    path = Path(name).expanduser()
    if path.suffix == ".json" and path.is_file():
        return spec_from_config(_json(path), path.resolve().parent.name)
    if path.is_dir() and (path / "config.json").is_file():
        return spec_from_config(_json(path / "config.json"), path.resolve().name)
    if path.exists() or looks_like_path(name):
        return _from_file(name)
    if is_hub_id(name):
        return _from_hub(name)
    hint = nearest(name, (*preset_words("models"), DEMO))
    raise SpecError(
        f"unknown model {name!r}{f' ({hint})' if hint.startswith('did you mean') else ''}; give a preset "
        "(plait plan --list), demo, a config.json, a model's directory, a .gguf file or a Hugging Face id (org/name)"
    )


def _demo() -> ModelSpec:
    """The demo's own header, or its preset where the file is not installed: planning needs no weights."""
    try:
        return _from_file(DEMO)
    except WeightsError:
        return model_preset(_DEMO_PRESET)


def _from_file(name: str) -> ModelSpec:
    found = resolve_model(name)
    if found.kind == "gguf":
        header = parse_gguf(found.path)
        return spec_from_gguf(header.metadata, header.tensors, rope_factors(found.path, header), found.path.stem)
    place = found.path if found.path.is_dir() else found.path.parent
    if not (place / "config.json").is_file():
        raise WeightsError(f"{place} has no config.json; the model's shape is written there")
    return spec_from_config(_json(place / "config.json"), place.resolve().name)


def _from_hub(name: str) -> ModelSpec:
    """Its config.json alone is fetched, or read from the hub's cache."""
    try:
        from huggingface_hub import hf_hub_download

        path = Path(hf_hub_download(name, "config.json"))
    except Exception as error:  # the client, its HTTP library and the disk have errors without a common base
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise WeightsError(
            f"the config.json of {name} is not in the hub's cache on this machine and cannot be fetched: {reason}; "
            "give a config.json, or a preset (plait plan --list)"
        ) from error
    return spec_from_config(_json(path), name)


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise SpecError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise SpecError(f"{path} is not a table of keys and values")
    return content
