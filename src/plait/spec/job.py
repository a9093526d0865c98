"""Job: what one wants done with a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from plait.errors import SpecError
from plait.spec.tables import Table, read_toml, validated

_Count = Annotated[int, Field(gt=0)]


@dataclass(frozen=True, slots=True)
class Job:
    """Generation: `users` requests of `prompt_tokens` each, answered by up to `max_tokens`.

    `context` is the positions that a request's KV cache holds; None means just enough. Raises SpecError for
    figures that cannot be right.
    """

    prompt_tokens: int
    max_tokens: int
    users: int = 1
    context: int | None = None
    task: Literal["generate"] = "generate"

    def __post_init__(self) -> None:
        for name in ("prompt_tokens", "max_tokens", "users"):
            if getattr(self, name) < 1:
                raise SpecError(f"job: {name} is {getattr(self, name)}, but must be at least 1")
        need = self.prompt_tokens + self.max_tokens
        if self.context is not None and self.context < need:
            raise SpecError(
                f"job: context is {self.context} positions, and a prompt of {self.prompt_tokens} and an answer of "
                f"{self.max_tokens} tokens need {need}: {need - self.context} more"
            )

    @property
    def positions(self) -> int:
        """Positions that a request's KV cache holds."""
        return self.prompt_tokens + self.max_tokens if self.context is None else self.context


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """Training: steps of `batch` sequences of `sequence` tokens. Raises SpecError for figures that cannot be right.

    `dtype` is what is computed in; weights, gradients and optimizer states follow the mixed-precision recipe in
    `costs.states`. `attention`: "fused" never stores the scores (flash attention), "unfused" does.
    """

    batch: int
    sequence: int
    dtype: str = "bfloat16"
    attention: Literal["fused", "unfused"] = "fused"
    task: Literal["train"] = "train"

    def __post_init__(self) -> None:
        for name in ("batch", "sequence"):
            if getattr(self, name) < 1:
                raise SpecError(f"job: {name} is {getattr(self, name)}, but must be at least 1")


class _JobTable(Table):
    task: Literal["generate"] = "generate"
    prompt_tokens: _Count
    max_tokens: _Count
    users: _Count = 1
    context: _Count | None = None


def read_job(path: Path) -> Job:
    """The job in a TOML file. Raises SpecError that names every fault."""
    return job_from_toml(read_toml(path, "job file", SpecError), f"job file {path}")


def job_from_toml(values: Mapping[str, Any], what: str = "job") -> Job:
    """The job in a parsed TOML table; `what` begins every error."""
    return Job(**validated(_JobTable, values, what, SpecError).model_dump())
