"""The page on files: the keys of plan and cluster files, from their pydantic tables, and what a run's folder holds."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_type_hints

import msgspec
from pydantic import BaseModel
from writing import code, prose, table

from plait.plans import file as plan_file
from plait.plans import training_file
from plait.spec import cluster_file
from plait.spec.tables import Table
from plait.timeline import record

ROOTS: Mapping[str, tuple[str, type[Table]]] = {
    "Plan file, generation": ('`task = "generate"`, or no task.', plan_file._PlanTable),
    "Plan file, training": ('`task = "train"`.', training_file._TrainingTable),
    "Cluster file": ("", cluster_file.ClusterTable),
}


def files_page() -> str:
    """The whole page."""
    words = ["# Files", "Unknown keys are refused, with the nearest known one. Nothing in any file is ever executed."]
    modules = {"Plan file, generation": plan_file, "Cluster file": cluster_file}
    for title, (note, root) in ROOTS.items():
        words += [f"## {title}", note]
        if title in modules:
            words.append(prose(modules[title]))
        words += [_table_of(path, model) for path, model in _tables(root, "")]
    words += ["## Run folder", prose(record), *_run_folder()]
    return "\n\n".join(word for word in words if word)


def _tables(model: type[BaseModel], path: str) -> Iterator[tuple[str, type[BaseModel]]]:
    """A table and those in it, with the heading that each has in TOML."""
    yield path, model
    for name, field in model.model_fields.items():
        inner = _model_in(field.annotation)
        if inner is not None:
            many = "list" in str(field.annotation)
            below = f"{path.strip('[]')}.{name}".strip(".")
            yield from _tables(inner, f"[[{below}]]" if many else f"[{below}]")


def _model_in(annotation: object) -> type[BaseModel] | None:
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for found in map(_model_in, get_args(annotation)) if found is not None), None)


def _table_of(path: str, model: type[BaseModel]) -> str:
    schema = model.model_json_schema(by_alias=True)
    needed = schema.get("required", [])
    rows = [
        (code(key), _type(value), "needed" if key in needed else _default(value))
        for key, value in schema["properties"].items()
    ]
    about = model.__doc__ or ""
    said = prose(model) if about and about != (Table.__doc__ or "") else ""
    said = "" if said.strip("`.") == path else said
    heading = f"### `{path}`" if path else "### At the top"
    return "\n\n".join(part for part in (heading, said, table(("key", "value", "default"), rows)) if part)


def _type(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        kinds = [one for one in schema["anyOf"] if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(map(_type, kinds)))
    if "allOf" in schema or "$ref" in schema:
        return "table"
    if "const" in schema:
        return code(f'"{schema["const"]}"')
    if "enum" in schema:
        return ", ".join(code(str(one)) for one in schema["enum"])
    match schema.get("type"):
        case "array" if "prefixItems" in schema:
            return f"list of {len(schema['prefixItems'])} values"
        case "array":
            return f"list of {_plural(_type(schema.get('items', {})))}{_length(schema)}"
        case "object" if isinstance(schema.get("additionalProperties"), Mapping):
            return f"table of {_plural(_type(schema['additionalProperties']))}"
        case "object":
            return "table"
        case "integer" | "number" as kind:
            return f"{kind}{_range(schema)}"
        case "string":
            return "text"
        case "boolean":
            return "true or false"
    return "value"


def _plural(words: str) -> str:
    first, *rest = words.split(",", 1)
    return ",".join([first if first == "text" else f"{first}s", *rest])


def _length(schema: Mapping[str, Any]) -> str:
    low, high = schema.get("minItems"), schema.get("maxItems")
    if low is None:
        return ""
    return f", {low} of them" if low == high else f", at least {low}"


def _range(schema: Mapping[str, Any]) -> str:
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    found = [f"{sign} {schema[key]:,}" for key, sign in signs.items() if key in schema]
    return f", {' and '.join(found)}" if found else ""


def _default(schema: Mapping[str, Any]) -> str:
    value = schema.get("default")
    if value is None or value == "" or value == [] or isinstance(value, Mapping):
        return ""
    return code(
        str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)
    )


def _run_folder() -> Iterator[str]:
    yield (
        f"`format` is {code(record.FORMAT)}, `version` {record.FORMAT_VERSION}. Times are seconds, sizes bytes. What "
        "is marked *array* is written as a JSON array of these values in this order, everything else as an object."
    )
    seen: list[type] = []
    for root in (record.RunHead, record.Timeline):
        for each in _classes(root, seen):
            yield _class_of(each)


def _classes(root: type, seen: list[type]) -> Iterator[type]:
    """The class, and those of ours that its fields hold, each once."""
    if root in seen:
        return
    seen.append(root)
    yield root
    for hint in get_type_hints(root).values():
        for inner in _ours(hint):
            yield from _classes(inner, seen)


def _ours(hint: object) -> Iterator[type]:
    if inspect.isclass(hint) and not get_args(hint):
        if hint.__module__.startswith("plait.") and (_is_array(hint) or _is_object(hint)):
            yield hint
        return
    for argument in get_args(hint):
        yield from _ours(argument)


def _is_array(each: type) -> bool:
    return issubclass(each, tuple) and hasattr(each, "_fields")


def _is_object(each: type) -> bool:
    return dataclasses.is_dataclass(each) or issubclass(each, msgspec.Struct)


def _class_of(each: type) -> str:
    hints = get_type_hints(each)
    if _is_array(each):
        names, shape = list(each._fields), " (*array*)"
    elif dataclasses.is_dataclass(each):
        names, shape = [field.name for field in dataclasses.fields(each)], ""
    else:
        names, shape = list(each.__struct_fields__), ""
    rows = [(code(name), code(_annotation(each, name, hints[name]))) for name in names]
    title = "run.json" if each is record.RunHead else each.__name__
    said = prose(each)
    return "\n\n".join(part for part in (f"### {title}{shape}", said, table(("key", "type"), rows)) if part)


def _annotation(each: type, name: str, hint: object) -> str:
    for base in each.__mro__:
        written = inspect.get_annotations(base).get(name)
        written = getattr(written, "__forward_arg__", written)  # a NamedTuple wraps what was written
        if isinstance(written, str):
            return written
    return getattr(hint, "__name__", str(hint))
