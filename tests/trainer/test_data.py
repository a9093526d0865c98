"""The text that is trained on: what is read, which sequences a batch holds, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from plait.errors import DataError
from plait.text.tokenizer import Tokenizer
from plait.trainer.data import Sequences, digest, order_of, read_ids


def words(*known: str, eos: tuple[int, ...] = ()) -> Tokenizer:
    backend = Backend(WordLevel({word: index for index, word in enumerate(known)}, unk_token=known[0]))
    backend.pre_tokenizer = Whitespace()
    return Tokenizer(backend, "a test", eos=eos)


def write(place: Path, **texts: str) -> Path:
    for name, text in texts.items():
        (place / f"{name}.txt").write_text(text, encoding="utf-8")
    return place


# --- reading ------------------------------------------------------------------------------------------------


def test_without_a_tokenizer_a_token_is_a_byte(tmp_path: Path) -> None:
    write(tmp_path, text="aé\n")
    assert read_ids([tmp_path / "text.txt"], None).tolist() == [97, 0xC3, 0xA9, 10]


def test_with_a_tokenizer_its_end_of_text_stands_between_files(tmp_path: Path) -> None:
    write(tmp_path, b="one two", a="two", c="")
    tokenizer = words("?", "one", "two", "<end>", eos=(3, 0))
    assert read_ids([tmp_path], tokenizer).tolist() == [2, 3, 1, 2, 3]
    assert read_ids([tmp_path / "b.txt", tmp_path / "a.txt"], tokenizer).tolist() == [1, 2, 3, 2]


def test_a_directory_is_read_in_the_order_of_its_names(tmp_path: Path) -> None:
    write(tmp_path, b="2", a="1")
    (tmp_path / "c").mkdir()
    write(tmp_path / "c", d="3")
    (tmp_path / "picture.png").write_bytes(b"\xff")
    assert bytes(read_ids([tmp_path], None).tolist()) == b"123"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "{} is empty: give a text to train on"),
        (
            b"fine\nnot \xe9t\xe9",
            "--data {} is not UTF-8 text: byte 9 (line 2) is 0xe9; convert it first, as in iconv -f latin1 -t utf-8 "
            "text.txt",
        ),
        (None, "--data {}: no such file or directory"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, content: bytes | None, message: str) -> None:
    file = tmp_path / "text.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(DataError) as error:
        read_ids([file], None)
    assert str(error.value) == message.format(file)


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        read_ids([tmp_path], None)
    assert str(error.value) == f"--data {tmp_path} is a directory without .txt files: name the files themselves"
    with pytest.raises(DataError) as error:
        read_ids([], None)
    assert str(error.value) == "no text was given: name a file to train on, as in --data text.txt"
    write(tmp_path, a="", b="", c="", d="")
    with pytest.raises(DataError) as error:
        read_ids([tmp_path], None)
    names = ", ".join(str(tmp_path / f"{name}.txt") for name in "abc")
    assert str(error.value) == f"{names} and 1 more are empty: give a text to train on"


# --- batches ------------------------------------------------------------------------------------------------


@given(st.integers(2, 60), st.integers(1, 9), st.integers(1, 7), st.integers(0, 3), st.integers(0, 5))
def test_every_sequence_once_in_a_pass(tokens: int, sequence: int, batch: int, seed: int, epoch: int) -> None:
    """Counted from any pass: all sequences, each with the tokens that follow its own as targets."""
    ids = np.arange(tokens, dtype=np.uint16)
    if tokens <= sequence:
        return
    made = Sequences(ids, sequence, batch, seed)
    count = (tokens - 1) // sequence
    firsts = []
    for step in range(epoch * count // batch, -(-(epoch + 1) * count // batch)):
        one = made.batch(step)
        assert one.tokens.shape == one.targets.shape == (batch, sequence)
        assert one.tokens.dtype == one.targets.dtype == torch.int64
        assert torch.equal(one.targets, one.tokens + 1)
        assert torch.equal(one.tokens, one.tokens[:, :1] + torch.arange(sequence))
        firsts += one.tokens[:, 0].tolist()
    skipped = epoch * count % batch
    assert sorted(firsts[skipped : skipped + count]) == [place * sequence for place in range(count)]


def test_the_order_is_known_and_another_in_every_pass_and_seed() -> None:
    assert order_of(0, 0, 8).tolist() == order_of(0, 0, 8).tolist()
    orders = {tuple(order_of(seed, epoch, 50).tolist()) for seed in range(4) for epoch in range(4)}
    assert len(orders) == 16
    assert all(sorted(order) == list(range(50)) for order in orders)


def test_batches_do_not_depend_on_which_were_asked_for_before() -> None:
    ids = np.arange(100, dtype=np.uint8)
    straight, jumping = Sequences(ids, 7, 4, 1), Sequences(ids, 7, 4, 1)
    expected = [straight.batch(step) for step in range(12)]
    for step in (11, 0, 5, 3, 11, 10):
        assert torch.equal(jumping.batch(step).tokens, expected[step].tokens)


@pytest.mark.parametrize(
    ("tokens", "sequence", "message"),
    [
        (
            40,
            128,
            "a.txt holds 40 tokens, but one sequence of 128 and the token after it are 129: 89 too few; give a longer "
            "text, or --sequence-length 39",
        ),
        (
            1,
            1,
            "a.txt holds 1 token, but one sequence of 1 and the token after it are 2: 1 too few; give a longer text",
        ),
    ],
)
def test_too_few_tokens(tokens: int, sequence: int, message: str) -> None:
    with pytest.raises(DataError) as error:
        Sequences(np.zeros(tokens, np.uint8), sequence, 1, 0, "a.txt")
    assert str(error.value) == message
    assert Sequences(np.zeros(sequence + 1, np.uint8), sequence, 1, 0).count == 1


def test_a_digest_tells_texts_apart() -> None:
    assert digest(np.array([1, 2], np.uint8)) == digest(np.array([1, 2], np.uint8))
    assert digest(np.array([1, 2], np.uint8)) != digest(np.array([2, 1], np.uint8))
