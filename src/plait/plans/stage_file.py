"""A stage, and the cluster, as tables of plan files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

from pydantic import Field, model_validator

from plait.errors import PlanError, SpecError
from plait.plans.layout import Layout, Stage
from plait.spec.cluster import Cluster
from plait.spec.cluster_file import cluster_from_toml
from plait.spec.tables import Table

_SHORT = 8
"""More ranks than this are written as a range, if they are one."""


class StageTable(Table):
    """``[[stages]]``. Many ranks at equal distances are `rank_range = [first, end, step]`.

    `devices` may be absent beside a ``[cluster]``: rank r then drives its device number r.
    """

    layers: list[int] = Field(min_length=2, max_length=2)
    ranks: list[int] | None = Field(default=None, min_length=1)
    rank_range: tuple[int, int, Annotated[int, Field(ge=1)]] | None = Field(default=None, strict=False)
    dtype: str = "float32"
    weights: str = "float32"
    threads: int = 1
    device: str = "cpu"
    host: str = "localhost"
    devices: list[str] = Field(default=[])
    shares: list[int] = Field(default=[])

    @model_validator(mode="after")
    def _has_ranks(self) -> StageTable:
        if (self.ranks is None) == (self.rank_range is None):
            raise ValueError("it needs either ranks or rank_range")
        return self

    def stage(self, names: Sequence[str] = ()) -> Stage:
        """The stage; `names` are the cluster's devices, where the file has a cluster."""
        first, end = self.layers
        assert self.ranks is not None or self.rank_range is not None
        ranks = tuple(range(*self.rank_range)) if self.rank_range is not None else tuple(self.ranks or ())
        devices = tuple(self.devices)
        if not devices and names and all(0 <= rank < len(names) for rank in ranks):
            devices = tuple(names[rank] for rank in ranks)
        shares = tuple(self.shares)
        return Stage(
            (first, end), ranks, self.dtype, self.weights, self.threads, self.device, self.host, devices, shares
        )


def stage_values(stage: Stage, names: Sequence[str] = ()) -> dict[str, Any]:
    """The stage's table, without what is empty or said by the cluster's devices `names`."""
    values = {key: value for key, value in asdict(stage).items() if value != ()}
    ranks = stage.ranks
    if len(ranks) > _SHORT:
        step = ranks[1] - ranks[0]
        if step > 0 and ranks == tuple(range(ranks[0], ranks[-1] + 1, step)):
            del values["ranks"]
            values["rank_range"] = [ranks[0], ranks[-1] + 1, step]
    if names and max(ranks) < len(names) and stage.devices == tuple(names[rank] for rank in ranks):
        del values["devices"]
    return values


def cluster_in_file(values: Mapping[str, Any] | None, what: str) -> Cluster | None:
    """The cluster of a plan file's ``[cluster]``; None where it has none. Errors: PlanError."""
    if values is None:
        return None
    try:
        return cluster_from_toml(values, f"the cluster of {what}")
    except SpecError as error:
        raise PlanError(str(error)) from None


def device_names(cluster: Cluster | None) -> tuple[str, ...]:
    """The cluster's devices in order; none without a cluster."""
    return () if cluster is None else tuple(device.name for device in cluster.devices)


def require_devices(layout: Layout, cluster: Cluster | None) -> None:
    """Every device that a stage names is in the cluster. Errors: PlanError, with the nearest name."""
    if cluster is None:
        return
    for index, stage in enumerate(layout.stages):
        for name in stage.devices:
            try:
                cluster.device(name)
            except SpecError as error:
                raise PlanError(f"stage {index}: {error}") from None
