"""Which stored tensor holds which of ours: the names of Hugging Face and of GGUF, and what their layouts do to it.

fused        one stored tensor holds several of ours, one after the other along the output dimension
transposed   stored as [in, out] (GPT-2's Conv1D in safetensors)
interleaved  the two halves of each rotary head lie zipped together (GGUF's architecture llama, for queries and keys)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from plait.spec.model import ModelSpec
from plait.spec.tensors import Shape, model_tensors


@dataclass(frozen=True, slots=True)
class Expected:
    """A tensor that the file should have: its name and shape there, and our tensors in it, in order."""

    name: str
    shape: Shape
    parts: tuple[str, ...]
    transposed: bool = False
    interleaved: bool = False


_HF_LAYER = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
}
_HF_OLMO2_LAYER = _HF_LAYER | {"attn_norm": "post_attention_layernorm", "mlp_norm": "post_feedforward_layernorm"}
_HF_PHI3_LAYER = _HF_LAYER | {
    "q": "self_attn.qkv_proj",
    "k": "self_attn.qkv_proj",
    "v": "self_attn.qkv_proj",
    "gate": "mlp.gate_up_proj",
    "up": "mlp.gate_up_proj",
}
_HF_GPT2_LAYER = {
    "q": "attn.c_attn",
    "k": "attn.c_attn",
    "v": "attn.c_attn",
    "o": "attn.c_proj",
    "up": "mlp.c_fc",
    "down": "mlp.c_proj",
    "attn_norm": "ln_1",
    "mlp_norm": "ln_2",
}
_HF_LAYERS = {"olmo2": _HF_OLMO2_LAYER, "phi3": _HF_PHI3_LAYER, "gpt2": _HF_GPT2_LAYER}

_GGUF_LAYER = {
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
    "attn_norm": "attn_norm",
    "mlp_norm": "ffn_norm",
}
_GGUF_LAYERS = {
    "olmo2": _GGUF_LAYER | {"attn_norm": "post_attention_norm", "mlp_norm": "post_ffw_norm"},
    "phi3": _GGUF_LAYER | {"q": "attn_qkv", "k": "attn_qkv", "v": "attn_qkv", "gate": "ffn_up"},
    "gpt2": _GGUF_LAYER | {"q": "attn_qkv", "k": "attn_qkv", "v": "attn_qkv"},
}
_GGUF_TOP = {"embed": "token_embd", "positions": "position_embd", "norm": "output_norm", "head": "output"}

_BUFFERS = {
    "inv_freq": re.compile(r"rotary_emb\.inv_freq$"),
    "gpt2": re.compile(r"(^|\.)h\.\d+\.attn\.(bias|masked_bias)$"),
}


def huggingface_tensors(spec: ModelSpec, names: Mapping[str, object]) -> list[Expected]:
    """What a checkpoint of `spec` should hold; `names` decides whether the body has its usual prefix."""
    gpt2 = spec.family == "gpt2"
    prefix = "transformer." if gpt2 else "model."
    if not any(name.startswith(prefix) for name in names):
        prefix = ""  # saved from the model without its head, as openai-community/gpt2 is
    top = {"embed": "wte", "positions": "wpe", "norm": "ln_f"} if gpt2 else {"embed": "embed_tokens", "norm": "norm"}
    top = {ours: prefix + theirs for ours, theirs in top.items()} | {"head": "lm_head"}
    layer = _HF_LAYERS.get(spec.family, _HF_LAYER)
    block = prefix + ("h" if gpt2 else "layers")
    transposed = frozenset(("q", "k", "v", "o", "up", "down")) if gpt2 else frozenset[str]()
    return list(_expected(spec, top, layer, block, transposed, frozenset()))


def gguf_tensors(spec: ModelSpec) -> list[Expected]:
    """What a GGUF file of `spec` should hold."""
    layer = _GGUF_LAYERS.get(spec.family, _GGUF_LAYER)
    interleaved = frozenset(("q", "k")) if spec.family == "llama" else frozenset[str]()
    return list(_expected(spec, _GGUF_TOP, layer, "blk", frozenset(), interleaved))


def ignorable(spec: ModelSpec, name: str) -> bool:
    """True for a stored buffer that the model's shape already says everything about: masks, rotary frequencies."""
    if name == "rope_freqs.weight":
        return True  # spec_from_gguf has read it
    return bool(_BUFFERS["inv_freq"].search(name) or (spec.family == "gpt2" and _BUFFERS["gpt2"].search(name)))


def _expected(
    spec: ModelSpec,
    top: Mapping[str, str],
    layer: Mapping[str, str],
    block: str,
    transposed: frozenset[str],
    interleaved: frozenset[str],
) -> Iterator[Expected]:
    """Our tensors, grouped by the stored tensor that holds them. Fused ones follow each other in our order."""
    groups: dict[str, list[str]] = {}
    shapes = model_tensors(spec)
    for ours in shapes:
        groups.setdefault(_stored_name(ours, top, layer, block), []).append(ours)
    for theirs, parts in groups.items():
        word = parts[0].split(".")[-2]
        rows = sum(shapes[part][0] for part in parts)
        shape: Shape = (rows, *shapes[parts[0]][1:])
        turned = word in transposed and len(shape) == 2
        yield Expected(theirs, shape[::-1] if turned else shape, tuple(parts), turned, word in interleaved)


def _stored_name(ours: str, top: Mapping[str, str], layer: Mapping[str, str], block: str) -> str:
    """``layers.3.q.weight`` becomes ``model.layers.3.self_attn.q_proj.weight``."""
    *where, word, kind = ours.split(".")
    if where:
        return f"{block}.{where[1]}.{layer[word]}.{kind}"
    return f"{top[word]}.{kind}"
