"""Damaged files and configs end in an error that is ours, or in a model: never in an IndexError, a hang or a crash."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import tiny_ggufs
import tiny_models as models
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plait.errors import UsageError
from plait.spec.gguf import spec_from_gguf
from plait.spec.huggingface import spec_from_config
from plait.weights.index import gguf_metadata, open_index

quick = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**40) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("fuzz")
    model = models.make("llama")
    models.save(model, folder)
    return {
        "gguf": tiny_ggufs.save("llama", model, folder / "tiny.gguf"),
        "safetensors": folder / "model.safetensors",
        "config": folder / "config.json",
    }


@pytest.mark.parametrize("kind", ["gguf", "safetensors"])
@given(data=st.data())
@quick
def test_flipped_and_cut_bytes(kind: str, files: dict[str, Path], data: st.DataObject) -> None:
    whole = files[kind].read_bytes()
    content = bytearray(whole)
    for at in data.draw(st.lists(st.integers(0, 4000), max_size=4)):
        content[at] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, 6000) | st.just(len(content)))]
    try:
        files[kind].write_bytes(content)
        with suppress(UsageError):
            open_index(files[kind])
    finally:
        files[kind].write_bytes(whole)


@pytest.mark.parametrize("family", models.CONFIGS)
@given(data=st.data())
@quick
def test_any_value_in_a_config(family: str, data: st.DataObject) -> None:
    config: dict[str, Any] = json.loads(json.dumps(models.CONFIGS[family]().to_dict(), default=str))
    for key in data.draw(st.lists(st.sampled_from([*sorted(config), "rope_scaling", "layer_types"]), max_size=2)):
        config[key] = data.draw(values)
    with suppress(UsageError):
        spec_from_config(config, "m")


@given(data=st.data())
@quick
def test_any_value_in_metadata(files: dict[str, Path], data: st.DataObject) -> None:
    metadata = dict(gguf_metadata(files["gguf"]))
    for key in data.draw(st.lists(st.sampled_from(sorted(metadata)), max_size=2)):
        metadata[key] = data.draw(values)
    with suppress(UsageError):
        spec_from_gguf(metadata, ["output.weight"])
