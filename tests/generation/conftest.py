"""Tiny random models on disk, and the demo model."""

from __future__ import annotations

from pathlib import Path

import pytest

from plait.generation.opened import Opened, open_model
from plait.weights.index import WeightsIndex, open_index
from tests.generation.llamas import save_llama


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of 6 layers with 3 query heads a KV head, far from ties: its logits are spread wide."""
    return save_llama(
        tmp_path_factory.mktemp("tiny"),
        7,
        vocab_size=320,
        hidden_size=96,
        intermediate_size=160,
        num_hidden_layers=6,
        num_attention_heads=6,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
    )


@pytest.fixture(scope="session")
def tiny(tiny_directory: Path) -> WeightsIndex:
    return open_index(tiny_directory)


@pytest.fixture(scope="session")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> WeightsIndex:
    """Little divides in this random Llama of 3 layers: 6 heads, 2 KV heads, 161 columns, 331 tied vocabulary rows."""
    directory = save_llama(
        tmp_path_factory.mktemp("uneven"),
        11,
        vocab_size=331,
        hidden_size=96,
        intermediate_size=161,
        num_hidden_layers=3,
        num_attention_heads=6,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
    )
    return open_index(directory)


@pytest.fixture(scope="session")
def demo() -> Opened:
    return open_model("demo")
