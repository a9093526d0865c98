"""What can be planned but not run is refused before any weight is looked at."""

from __future__ import annotations

import pytest
import torch

from plait.errors import SpecError
from plait.nn.decoder import StageModel
from plait.spec.presets import model_preset


def test_a_stage_of_experts_is_refused() -> None:
    with pytest.raises(SpecError) as caught:
        StageModel(model_preset("mixtral-8x7b"), 0, 1, {}, torch.float32)
    assert str(caught.value) == ("mixtral-8x7b has a mixture of experts: such a model can be planned but not run yet")
