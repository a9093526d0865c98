"""Random Llamas on disk: small, and far from ties, so that their logits are spread wide."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def save_llama(directory: Path, seed: int, **sizes: int | bool) -> Path:
    """A Llama of these sizes, as `LlamaConfig` calls them, saved to `directory`, which comes back."""
    torch.manual_seed(seed)
    LlamaForCausalLM(LlamaConfig(num_key_value_heads=2, initializer_range=0.2, **sizes)).save_pretrained(directory)
    return directory
