"""Presets: known models, devices, links and clusters by name. Their figures and sources lie in data files.

model_preset("llama3-70b")      cluster_preset("h100", gpus=64)      preset_names()["links"]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from plait.errors import SpecError
from plait.spec.checked import checked, head_dim
from plait.spec.cluster import Cluster, Device
from plait.spec.cluster_file import cluster_from_toml, device_from_preset
from plait.spec.figures import Name
from plait.spec.model import Experts, LatentAttention, ModelSpec, Rope, RopeVariant
from plait.spec.preset_files import Sort, preset_sources, preset_values, preset_words
from plait.spec.tables import Table, validated

__all__ = ["cluster_preset", "device_preset", "model_preset", "parameters", "preset_names", "preset_sources"]

_SORTS: tuple[Sort, ...] = ("models", "clusters", "devices", "links")

Count = Annotated[int, Field(ge=1)]


class _RopeTable(Table):
    """What `Rope` has beside theta. `dims` None: all of a head's."""

    dims: Count | None = None
    variant: RopeVariant = "default"
    factor: float = 1.0
    original_positions: int | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0


class _ExpertsTable(Table):
    count: Count
    per_token: Count
    intermediate: Count
    shared: int = 0
    shared_intermediate: int = 0
    dense_layers: int = 0


class _LatentTable(Table):
    kv_rank: Count
    rope_dim: Count
    nope_dim: Count
    value_dim: Count
    query_rank: Count | None = None


class _ModelTable(Table):
    """A model preset. Absent: as ModelSpec's default; heads divide the hidden size."""

    family: Name
    layers: Count
    hidden: Count
    heads: Count
    kv_heads: Count
    head_dim: Count | None = None
    intermediate: Count
    vocab: Count
    max_positions: Count
    norm_eps: float
    rope_theta: float | None = None
    rope: _RopeTable = Field(default=_RopeTable())
    experts: _ExpertsTable | None = None
    latent: _LatentTable | None = None
    norm: str = "rms"
    mlp: str = "gated"
    activation: str = "silu"
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: str | None = None
    tied: bool = False
    parameters: Count

    def spec(self, name: str) -> ModelSpec:
        """The model."""
        values: dict[str, Any] = self.model_dump(exclude={"rope_theta", "rope", "experts", "latent", "parameters"})
        values["head_dim"] = self.head_dim or head_dim(self.hidden, self.heads, name)
        rope = None
        if self.rope_theta is not None:
            rotation = self.rope.model_dump(exclude={"dims"})
            rope = Rope(self.rope_theta, self.rope.dims or values["head_dim"], **rotation)
        return ModelSpec(
            name=name,
            rope=rope,
            windows=(None,) * self.layers,
            experts=None if self.experts is None else Experts(**self.experts.model_dump()),
            latent=None if self.latent is None else LatentAttention(**self.latent.model_dump()),
            **values,
        )


def preset_names() -> Mapping[Sort, Mapping[str, str]]:
    """For each sort of presets every name, and what it is in a few words: what `plait plan --list` shows."""
    return {sort: preset_words(sort) for sort in _SORTS}


def model_preset(name: str) -> ModelSpec:
    """The model of that name. Errors: SpecError, with the nearest known name."""
    return checked(_model_table(name).spec(name), f"model preset {name!r}")


def parameters(name: str) -> int:
    """How many parameters the source of a model preset counts. Errors: SpecError."""
    return _model_table(name).parameters


def _model_table(name: str) -> _ModelTable:
    return validated(_ModelTable, preset_values("models", name), f"model preset {name!r}", SpecError)


def device_preset(name: str, called: str | None = None, host: str = "localhost") -> Device:
    """A device with the preset's figures, `called` so on `host`. Errors: SpecError, with the nearest known name."""
    return device_from_preset(name, called or name, host)


def cluster_preset(name: str, gpus: int | None = None) -> Cluster:
    """The preset's hosts, as many as hold `gpus` devices (None: the preset's own number).

    Fewer devices than a host has make one smaller host. Errors: SpecError, for a name never heard of and for devices
    that do not fill hosts.
    """
    values = preset_values("clusters", name)
    usual = values.pop("gpus")
    count = usual if gpus is None else gpus
    if count < 1:
        raise SpecError(f"--gpus {count} was asked for, but there must be at least 1")
    hosts = _equal_hosts(name, values["hosts"][0], count) if len(values["hosts"]) == 1 else values["hosts"][:count]
    if len(values["hosts"]) > 1 and count > len(hosts):
        raise SpecError(
            f"--gpus {count} was asked for, but cluster preset {name!r} has {len(hosts)} devices: {count - len(hosts)} "
            "too many (a cluster file can have as many as you like)"
        )
    return cluster_from_toml({**values, "hosts": hosts}, f"cluster preset {name!r}")


def _equal_hosts(name: str, host: Mapping[str, Any], gpus: int) -> list[dict[str, Any]]:
    per_host = host["devices"]
    if gpus <= per_host:
        return [{**host, "name": f"{host['name']}-0", "devices": gpus}]
    if gpus % per_host:
        fewer, more = gpus // per_host * per_host, -(-gpus // per_host) * per_host
        raise SpecError(
            f"--gpus {gpus} was asked for, but hosts of cluster preset {name!r} have {per_host} devices: "
            f"{gpus - fewer} would be left over (--gpus {fewer} or {more} fills hosts)"
        )
    return [{**host, "count": gpus // per_host}]
