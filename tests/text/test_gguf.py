"""The demo model's tokenizer against transformers reading the same file, and the cache."""

from __future__ import annotations

import pydoc_data.topics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plait.errors import RequestError, WeightsError
from plait.text import loading
from plait.text.chat import chat_prompt, render_chat
from plait.text.loading import tokenizer_from_gguf
from plait.text.tokenizer import Tokenizer

TEXTS = [
    "",
    " ",
    "What is the capital of France?",
    "  two leading spaces, trailing  ",
    "1234567890, 3.14159 and   42\n\t\t7 x=10",
    "def f(x):\n    return x ** 2  # it's\r\n\r\n\tif x:\n        42",
    "naïve café Ångström ß",
    "日本語のテキスト。한국어 العربية हिन्दी",
    "👩‍👩‍👧‍👦 🇫🇷 👍🏽 \u200b\ufeff",
    "a\u0301 e\u0308 \u0000 \x7f",
    "<|im_start|>user\nhello<|im_end|>\n<|endoftext|>",
    "I'll you've he'd CAN'T DON'T",
    "==== ---- ....  ((())) {[<>]} \\n \\t",
]


def test_tokens_equal_transformers(demo: Tokenizer, reference: Any) -> None:
    for text in TEXTS:
        for special in (True, False):
            assert demo.encode(text, special) == reference.encode(text, add_special_tokens=special), text


def test_tokens_equal_transformers_on_a_book(demo: Tokenizer, reference: Any) -> None:
    for name, text in pydoc_data.topics.topics.items():
        ids = demo.encode(text)
        assert ids == reference.encode(text), name
        assert demo.decode(ids) == text


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=60))
def test_any_text(demo: Tokenizer, reference: Any, text: str) -> None:
    """Some control characters are in no token of this vocabulary, so not every text comes back."""
    ids = demo.encode(text)
    assert ids == reference.encode(text)
    assert demo.decode(ids, skip_special=False) == reference.decode(ids)


def test_reference_answer_of_the_design(demo: Tokenizer) -> None:
    answer = [504, 3575, 282, 4649, 314, 7042, 30, 2]
    assert demo.decode(answer) == "The capital of France is Paris."
    assert demo.decode(answer, skip_special=False) == "The capital of France is Paris.<|im_end|>"
    stream = demo.stream()
    assert [stream.push(token) for token in answer] == ["The", " capital", " of", " France", " is", " Paris", ".", ""]
    assert stream.flush() == ""


def test_special_tokens(demo: Tokenizer, reference: Any) -> None:
    assert (demo.bos, demo.eos, demo.vocab_size) == (1, (2,), 49152)
    assert demo.special_tokens == reference.special_tokens_map


def test_chat_equals_transformers(demo: Tokenizer, reference: Any) -> None:
    conversations = [
        [{"role": "user", "content": "What is the capital of France?"}],
        [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi\n"}],
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "<c>"}],
    ]
    for messages in conversations:
        for prompt in (True, False):
            expected = reference.apply_chat_template(messages, add_generation_prompt=prompt, tokenize=False)
            assert render_chat(demo, messages, prompt) == expected
    expected_ids = reference.apply_chat_template(conversations[0], add_generation_prompt=True)["input_ids"]
    assert chat_prompt(demo, "What is the capital of France?") == expected_ids


def test_cached_tokenizer_is_the_same_and_is_not_converted_again(
    demo: Tokenizer, demo_metadata: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*arguments: object) -> None:
        raise AssertionError("converted again")

    monkeypatch.setattr(loading, "_convert_gguf", never)
    assert tokenizer_from_gguf(demo_metadata).backend.to_str() == demo.backend.to_str()


def test_corrupt_cache_is_ignored(demo: Tokenizer, demo_metadata: dict[str, Any], cache: Path) -> None:
    (kept,) = (cache / "plait" / "tokenizers").iterdir()
    whole = kept.read_text()
    kept.write_text(whole[:1000])
    assert tokenizer_from_gguf(demo_metadata).encode("Paris") == demo.encode("Paris")
    assert kept.read_text() == whole


def test_unwritable_cache_only_costs_time(
    small: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("platformdirs.user_cache_path", lambda name: tmp_path / "file" / name)
    assert tokenizer_from_gguf(small).encode("ab") == [3, 2]


@pytest.fixture
def small() -> dict[str, Any]:
    """A byte-level vocabulary that marks the beginning and the end of text."""
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": ["<s>", "</s>", "b", "a", "<|eot|>"],
        "tokenizer.ggml.token_type": [3, 3, 1, 1, 3],
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.eot_token_id": 4,
    }


def test_ends_are_added_where_the_file_says_so(small: dict[str, Any]) -> None:
    both = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}
    tokenizer = tokenizer_from_gguf(small | both)
    assert tokenizer.encode("ab") == [0, 3, 2, 1]
    assert tokenizer.encode("ab", add_special=False) == [3, 2]
    assert tokenizer_from_gguf(small).encode("ab") == [3, 2]
    assert tokenizer.eos == (1, 4)


def test_file_without_tokenizer() -> None:
    with pytest.raises(WeightsError) as caught:
        tokenizer_from_gguf({"general.architecture": "llama"}, "m.gguf")
    assert str(caught.value) == (
        "m.gguf holds no tokenizer: it has no tokenizer.ggml.tokens; take a GGUF file made by llama.cpp's converter, "
        "or give the model's Hugging Face directory"
    )


def test_unknown_kind_of_tokenizer(small: dict[str, Any]) -> None:
    with pytest.raises(WeightsError) as caught:
        tokenizer_from_gguf(small | {"tokenizer.ggml.model": "rwkv"}, "m.gguf")
    assert str(caught.value) == (
        "m.gguf has a tokenizer of kind 'rwkv' that transformers cannot convert: Cannot build a tokenizer from a GGUF "
        "file stating tokenizer 'rwkv'. Supported: ['gemma4', 'gpt2', 'llama', 't5'].; "
        "give the model's Hugging Face directory"
    )


def test_prompt_that_is_not_unicode(demo: Tokenizer) -> None:
    with pytest.raises(RequestError) as caught:
        demo.encode("ab\udcff")
    assert str(caught.value) == ("the prompt is not valid Unicode: character 3 is '\\udcff'; give it as UTF-8 text")
