"""Reading what a person wrote in TOML: every fault is named with its place, an unknown key with the nearest known."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from plait.errors import UsageError, nearest

Model = TypeVar("Model", bound=BaseModel)


class Table(BaseModel):
    """A TOML table: frozen, and no key that it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def read_toml(path: Path, what: str, error: type[UsageError]) -> dict[str, Any]:
    """The file as plain values. Errors: `error`, for a file that is missing, unreadable or not TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise error(f"{what} {path}: no such file") from None
    except (OSError, UnicodeDecodeError) as cause:
        raise error(f"{what} {path} cannot be read: {cause}") from None
    except tomllib.TOMLDecodeError as cause:
        raise error(f"{what} {path} is not TOML: {cause}") from None


def validated(table: type[Model], values: Mapping[str, Any], what: str, error: type[UsageError]) -> Model:
    """`values` as a `table`. Errors: `error`, one line for every fault."""
    try:
        return table.model_validate(values)
    except ValidationError as cause:
        lines = [_line(fault, table) for fault in cause.errors(include_url=False)]
        raise error("\n".join([f"{what} has {_count(len(lines))}:", *(f"  {line}" for line in lines)])) from None


def _count(faults: int) -> str:
    return "a fault" if faults == 1 else f"{faults} faults"


def _line(fault: ErrorDetails, table: type[BaseModel]) -> str:
    *parents, last = fault["loc"] or ("",)
    place = ".".join(str(piece) for piece in fault["loc"])
    if fault["type"] == "extra_forbidden":
        return f"unknown key {place!r}: {nearest(str(last), _known(table, parents))}"
    if fault["type"] == "missing":
        return f"key {place!r} is missing"
    if fault["type"] == "value_error":
        return f"{place}: {fault['ctx']['error']}" if place else str(fault["ctx"]["error"])
    return f"{place} is {fault['input']!r}: {fault['msg'][0].lower()}{fault['msg'][1:]}"


def _known(table: type[BaseModel], parents: list[int | str]) -> list[str]:
    """The keys of the table that stands at `parents`."""
    for piece in parents:
        if isinstance(piece, str) and piece in table.model_fields:
            inner = _table_in(table.model_fields[piece].annotation)
            if inner is not None:
                table = inner
    return [field.alias or name for name, field in table.model_fields.items()]


def _table_in(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    arguments = getattr(annotation, "__args__", ())
    return next((found for found in map(_table_in, arguments) if found is not None), None)
