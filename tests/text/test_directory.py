"""Tokenizers of Hugging Face directories, against transformers reading the same directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors

from plait.errors import WeightsError
from plait.text.loading import tokenizer_from_directory

TEXTS = ["ab ba", " <s>a</s>", "<|user|>", "b" * 20]
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
VOCAB = {word: i for i, word in enumerate(["<s>", "</s>", "<unk>", *ALPHABET, "ab", "ba"])}


def write(directory: Path, **contents: Any) -> None:
    for name, content in contents.items():
        (directory / f"{name}.json").write_text(json.dumps(content))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A byte-level tokenizer.json that adds <s>, pads and truncates, beside the usual configs."""
    backend = Backend(models.BPE(VOCAB, [("a", "b"), ("b", "a")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    backend.add_special_tokens(["<s>", "</s>"])
    backend.enable_truncation(4)
    backend.enable_padding(length=9)
    backend.save(str(tmp_path / "tokenizer.json"))
    write(
        tmp_path,
        tokenizer_config={
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<s>",
            "eos_token": {"__type": "AddedToken", "content": "</s>", "special": True},
            "chat_template": "{{ messages[0].content }}",
        },
        config={"model_type": "llama", "eos_token_id": 1},
    )
    return tmp_path


def reference(directory: Path) -> Any:
    from transformers import AutoTokenizer

    made = AutoTokenizer.from_pretrained(str(directory))
    made.backend_tokenizer.no_truncation()
    made.backend_tokenizer.no_padding()
    return made


def assert_equal(directory: Path) -> None:
    ours, theirs = tokenizer_from_directory(directory), reference(directory)
    for text in TEXTS:
        for special in (True, False):
            assert ours.encode(text, special) == theirs.encode(text, add_special_tokens=special), text


def change(directory: Path, name: str, **values: Any) -> None:
    path = directory / f"{name}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_tokenizer_json(model: Path) -> None:
    assert_equal(model)
    tokenizer = tokenizer_from_directory(model)
    assert tokenizer.encode("ab") == [0, VOCAB["ab"]]
    assert tokenizer.encode("ab" * 9, add_special=False) == [VOCAB["ab"]] * 9  # neither cut nor padded
    assert (tokenizer.bos, tokenizer.eos) == (0, (1,))
    assert tokenizer.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert tokenizer.chat_template == "{{ messages[0].content }}"


def test_tokenizer_json_says_which_ends_are_added(model: Path) -> None:
    """What tokenizer_config.json says beside it is for files that must be converted."""
    change(model, "tokenizer_config", add_bos_token=False, add_eos_token=True)
    assert_equal(model)


def test_tokens_that_only_the_config_knows(model: Path) -> None:
    token = {"content": "<|user|>", "special": True, "normalized": False, "lstrip": False, "rstrip": False}
    change(model, "tokenizer_config", added_tokens_decoder={str(len(VOCAB)): token | {"single_word": False}})
    assert_equal(model)
    assert tokenizer_from_directory(model).encode("<|user|>", add_special=False) == [len(VOCAB)]


def test_ends_of_generation_come_first(model: Path) -> None:
    write(model, generation_config={"eos_token_id": [5, 1]})
    assert tokenizer_from_directory(model).eos == (5, 1)
    write(model, generation_config={"eos_token_id": 7})
    assert tokenizer_from_directory(model).eos == (7, 1)


def test_special_tokens_map_is_read_too(model: Path) -> None:
    write(model, special_tokens_map={"pad_token": "</s>", "bos_token": "</s>"})
    assert tokenizer_from_directory(model).special_tokens == {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "</s>",
    }


def test_chat_template_file_wins(model: Path) -> None:
    (model / "chat_template.jinja").write_text("from the file")
    assert tokenizer_from_directory(model).chat_template == "from the file"


def test_several_templates_by_name(model: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    change(model, "tokenizer_config", chat_template=named)
    assert tokenizer_from_directory(model).chat_template == "plain"


def test_vocabulary_and_merges_are_converted_and_kept(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platformdirs.user_cache_path", lambda name: tmp_path / "cache")
    words = ["<|endoftext|>", *ALPHABET, "ab", "ba"]
    write(tmp_path, vocab={word: i for i, word in enumerate(words)}, config={"model_type": "gpt2"})
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\nb a\n")
    assert_equal(tmp_path)
    assert len(list((tmp_path / "cache" / "tokenizers").iterdir())) == 1
    monkeypatch.setattr("plait.text.loading._convert", None)
    assert_equal(tmp_path)


def test_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(WeightsError) as caught:
        tokenizer_from_directory(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path} holds no tokenizer: need tokenizer.json, or vocab.json with merges.txt, or tokenizer.model; "
        "copy it from the model's page"
    )


def test_sentencepiece_model_that_cannot_be_converted(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"not a model")
    write(tmp_path, config={"model_type": "llama"})
    with pytest.raises(WeightsError) as caught:
        tokenizer_from_directory(tmp_path)
    text = str(caught.value)
    assert text.startswith(f"{tmp_path} has no tokenizer.json, and transformers cannot convert its tokenizer.model: ")
    assert text.endswith("; get tokenizer.json from the model's page")
    assert "\n" not in text


def test_corrupt_files(model: Path) -> None:
    (model / "tokenizer_config.json").write_text("{")
    with pytest.raises(WeightsError) as caught:
        tokenizer_from_directory(model)
    assert str(caught.value) == (
        f"{model / 'tokenizer_config.json'} is not JSON: Expecting property name enclosed in double quotes: "
        "line 1 column 2 (char 1); fetch the file again"
    )
    (model / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(WeightsError) as caught:
        tokenizer_from_directory(model)
    assert str(caught.value).startswith(f"{model / 'tokenizer.json'} cannot be read: ")
    assert str(caught.value).endswith("; fetch the file again")
