"""Models described in one line."""

from __future__ import annotations

import pytest

from plait.errors import SpecError
from plait.spec.inline import inline_spec, is_inline
from plait.weights.model import model_spec


def test_what_nobody_names_is_usual() -> None:
    spec = inline_spec("llama:layers=4,hidden=256,heads=8")
    assert (spec.layers, spec.hidden, spec.heads, spec.kv_heads, spec.head_dim) == (4, 256, 8, 8, 32)
    assert (spec.intermediate, spec.vocab, spec.max_positions, spec.tied) == (704, 256, 2048, False)
    assert (spec.bos, spec.eos, spec.windows) == (None, (), (None,) * 4)


def test_every_key() -> None:
    spec = inline_spec("qwen3:layers=2,hidden=96,heads=6,kv_heads=3,intermediate=100,vocab=1000,positions=64,tied=1")
    assert (spec.family, spec.kv_heads, spec.head_dim, spec.intermediate) == ("qwen3", 3, 16, 100)
    assert (spec.vocab, spec.max_positions, spec.tied, spec.qk_norm) == (1000, 64, True, "head")


@pytest.mark.parametrize("family", ["gpt2", "llama", "mistral", "olmo2", "phi3", "qwen2", "qwen3"])
def test_every_family(family: str) -> None:
    name = f"{family}:layers=2,hidden=64,heads=4"
    spec = model_spec(name)
    assert (spec.name, spec.family, spec.layers, spec.vocab) == (name, family, 2, 256)
    assert (spec.intermediate, spec.windows) == (256 if family == "gpt2" else 192, (None, None))


def test_only_a_family_and_a_colon_is_one_line() -> None:
    assert is_inline("llama:")
    assert not any(map(is_inline, ("llama3-8b", "demo", "org/name", "./llama:x", "C:\\models")))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "lama:layers=1,hidden=8,heads=1",
            "model 'lama:layers=1,hidden=8,heads=1': unknown family 'lama'; did you mean 'llama'?",
        ),
        ("llama:layer=1", "model 'llama:layer=1': unknown key 'layer'; did you mean 'layers'?"),
        (
            "llama:layers=two",
            "model 'llama:layers=two': layers must be a whole number, as in llama:layers=4,hidden=256,heads=4",
        ),
        (
            "llama:layers=1",
            "model 'llama:layers=1': missing hidden, heads; write it as in llama:layers=4,hidden=256,heads=4",
        ),
        ("gpt2:layers=1,hidden=8,heads=2,kv_heads=1", "a gpt2 has as many KV heads as heads: leave kv_heads out"),
        (
            "llama:layers=1,hidden=9,heads=2",
            "llama config of 'llama:layers=1,hidden=9,heads=2': hidden size 9 is not a multiple of 2 heads, and no "
            "head dimension is given",
        ),
        (
            "llama:layers=0,hidden=8,heads=2",
            "llama config of 'llama:layers=0,hidden=8,heads=2': num_hidden_layers is 0; it must be a whole number "
            "above 0",
        ),
    ],
)
def test_refusals(text: str, message: str) -> None:
    with pytest.raises(SpecError) as error:
        inline_spec(text)
    assert str(error.value) == message
