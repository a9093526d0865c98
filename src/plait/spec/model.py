"""ModelSpec: what a decoder-only transformer looks like, whatever file it came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FAMILIES = ("gpt2", "llama", "mistral", "olmo2", "phi3", "qwen2", "qwen3")

RopeVariant = Literal["default", "linear", "llama3", "yarn"]


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding. `dims` of a head's dimensions are rotated (all of them in most models).

    `factor` scales positions (linear, llama3, yarn). `attention_factor` multiplies cos and sin (yarn);
    None means the default of the variant, 0.1 ln(factor) + 1 for yarn.
    """

    theta: float
    dims: int
    variant: RopeVariant = "default"
    factor: float = 1.0
    original_positions: int | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts in place of the MLP: a router picks `per_token` of `count` experts for every token.

    `intermediate`: of one expert. `shared`: experts that every token goes through, of `shared_intermediate` each.
    `dense_layers`: the first layers, which keep the model's plain MLP.
    """

    count: int
    per_token: int
    intermediate: int
    shared: int = 0
    shared_intermediate: int = 0
    dense_layers: int = 0


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): the cache holds `kv_rank + rope_dim` a position.

    A head's query and key have `nope_dim + rope_dim` dimensions, its value `value_dim`. `query_rank` None: queries are
    projected at once.
    """

    kv_rank: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    query_rank: int | None = None


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder-only transformer. All counts are of the whole model, before any split.

    `windows[i]` is the sliding window of layer i in positions (None: full attention). `norm_placement`
    "post" normalises what a block adds (OLMo-2), "pre" what it reads. `qk_norm`: "head" normalises each
    head's query and key over head_dim (Qwen3), "full" the whole projection (OLMo-2). `experts` and `latent` can be
    planned; running them comes later.
    """

    name: str
    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    max_positions: int
    norm_eps: float
    rope: Rope | None
    windows: tuple[int | None, ...]
    norm: Literal["rms", "layer"] = "rms"
    norm_placement: Literal["pre", "post"] = "pre"
    mlp: Literal["gated", "plain"] = "gated"
    activation: Literal["silu", "gelu", "gelu_tanh"] = "silu"
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: Literal["head", "full"] | None = None
    tied: bool = False
    bos: int | None = None
    eos: tuple[int, ...] = ()
    experts: Experts | None = None
    latent: LatentAttention | None = None

    @property
    def learned_positions(self) -> bool:
        """True where positions are a table that is added to the embedding (GPT-2), not rotated."""
        return self.rope is None
