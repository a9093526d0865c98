"""What a stream emits, joined, is the decoding of all; and no unfinished character ever shows."""

from __future__ import annotations

import random

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from plait.text.tokenizer import Tokenizer

SAME = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def streamed(tokenizer: Tokenizer, ids: list[int], skip_special: bool = True) -> list[str]:
    stream = tokenizer.stream(skip_special)
    return [*(stream.push(token) for token in ids), stream.flush()]


def sentencepiece(decoder: decoders.Decoder) -> Tokenizer:
    """Byte tokens 3 to 258, then a few words, in Llama 2's spelling."""
    words = [
        "<s>",
        "</s>",
        "<unk>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        "▁Hi",
        "there",
        "▁▁",
        "é",
        "\ufffd",
    ]
    backend = tokenizers.Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, [], byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoder
    backend.add_special_tokens(["<s>", "</s>", "<unk>"])
    return Tokenizer(backend, "test")


LLAMA = decoders.Sequence(
    [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
)


@SAME
@given(ids=st.lists(st.integers(0, 49200), max_size=40), skip=st.booleans())
def test_byte_level(demo: Tokenizer, ids: list[int], skip: bool) -> None:
    assert "".join(streamed(demo, ids, skip)) == demo.decode(ids, skip)


@SAME
@given(text=st.text(max_size=40))
def test_no_unfinished_character(demo: Tokenizer, text: str) -> None:
    ids = demo.encode(text)
    pieces = streamed(demo, ids, skip_special=False)
    assert "".join(pieces) == demo.decode(ids, skip_special=False)
    assert "\ufffd" in "".join(pieces) or not any("\ufffd" in piece for piece in pieces)


@SAME
@given(ids=st.lists(st.integers(0, 270), max_size=40), skip=st.booleans())
@pytest.mark.parametrize("decoder", [LLAMA, decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])])
def test_sentencepiece(decoder: decoders.Decoder, ids: list[int], skip: bool) -> None:
    tokenizer = sentencepiece(decoder)
    assert "".join(streamed(tokenizer, ids, skip)) == tokenizer.decode(ids, skip)


@SAME
@given(text=st.text(max_size=8), tail=st.lists(st.integers(0, 270), max_size=8))
def test_sentencepiece_bytes(text: str, tail: list[int]) -> None:
    tokenizer = sentencepiece(LLAMA)
    ids = [259, *(3 + byte for byte in text.encode()), *tail]
    assert "".join(streamed(tokenizer, ids)) == tokenizer.decode(ids)


def test_an_emoji_comes_whole(demo: Tokenizer) -> None:
    ids = demo.encode("a 👩‍👧!")
    assert len(ids) > 6
    pieces = [piece for piece in streamed(demo, ids) if piece]
    assert "".join(pieces) == "a 👩‍👧!"
    assert pieces[0] == "a"
    assert not any("\ufffd" in piece for piece in pieces)


def test_an_unfinished_character_shows_at_the_end(demo: Tokenizer) -> None:
    ids = demo.encode("x 👩")[:-1]
    pieces = streamed(demo, ids)
    assert "".join(pieces) == demo.decode(ids)
    assert pieces[-1].endswith("\ufffd")


def test_spaces_around_a_special_token() -> None:
    tokenizer = sentencepiece(LLAMA)
    assert streamed(tokenizer, [260, 1, 260, 259, 259, 260]) == ["Hi", "", " Hi", " ", " ", " Hi", ""]


@pytest.mark.soak
def test_a_long_stream_of_anything(demo: Tokenizer) -> None:
    """A model that has lost its way: 200 streams of 2,000 random ids."""
    source = random.Random(1)
    for _ in range(200):
        ids = [source.randrange(demo.vocab_size) for _ in range(2000)]
        assert "".join(streamed(demo, ids)) == demo.decode(ids)
