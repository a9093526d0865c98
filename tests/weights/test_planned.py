"""A checkpoint that can be planned but not run is refused by its config.json, not by its tensors' names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plait.errors import SpecError
from plait.weights.index import open_index


def test_a_checkpoint_of_experts_is_refused(tmp_path: Path) -> None:
    config = {
        "model_type": "mixtral",
        "vocab_size": 100,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "eos_token_id": None,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(SpecError) as caught:
        open_index(str(tmp_path))
    assert str(caught.value) == (
        f"{tmp_path.name} has a mixture of experts: such a model can be planned but not run yet"
    )
