"""Small GGUF files, written as llama.cpp's converter writes them: its names come from the gguf package's own table."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind

ARCHES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "phi3": gguf.MODEL_ARCH.PHI3,
    "olmo2": gguf.MODEL_ARCH.OLMO2,
    "gpt2": gguf.MODEL_ARCH.GPT2,
}


def permute(weights: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """What the converter does to the queries and keys of architecture llama."""
    return (
        weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:])
        .swapaxes(1, 2)
        .reshape(weights.shape)
    )


def metadata(writer: gguf.GGUFWriter, config: Any) -> None:
    gpt2 = config.model_type == "gpt2"
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(4 * config.hidden_size if gpt2 else config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_tokenizer_model("none")
    if gpt2:
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        return
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(head_dim)
    if head_dim * config.num_attention_heads != config.hidden_size:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)


def tensors(arch: str, model: Any) -> Iterable[tuple[str, np.ndarray[Any, Any]]]:
    config = model.config
    names = gguf.get_tensor_name_map(ARCHES[arch], config.num_hidden_layers)
    for theirs, tensor in model.state_dict().items():
        name = names.get_name(theirs, try_suffixes=(".weight", ".bias"))
        assert name is not None, theirs
        if name == "output.weight" and config.tie_word_embeddings:
            continue
        values = tensor.float().numpy()
        if arch == "llama" and ".attn_q." in name:
            values = permute(values, config.num_attention_heads)
        if arch == "llama" and ".attn_k." in name:
            values = permute(values, config.num_key_value_heads)
        if arch == "gpt2" and values.ndim == 2 and name.startswith("blk."):
            values = values.T
        yield name, np.ascontiguousarray(values)


def save(arch: str, model: Any, path: Path, kind: Kind = Kind.F32) -> Path:
    """The model with its matrices as `kind`, its vectors in float32."""
    writer = gguf.GGUFWriter(path, arch)
    metadata(writer, model.config)
    for name, values in tensors(arch, model):
        if values.ndim == 1 or kind == Kind.F32:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    return finish(writer, path)


def finish(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def as_stored(values: torch.Tensor, kind: Kind) -> torch.Tensor:
    """What is left of `values` after they were packed as `kind`."""
    if values.ndim == 1 or kind == Kind.F32:
        return values
    packed = gguf.quants.quantize(values.contiguous().numpy(), kind)
    return torch.from_numpy(gguf.quants.dequantize(packed, kind)).view(values.shape)
