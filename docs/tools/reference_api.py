"""The page on the Python API: every public name of `plait`, with its signature and docstring."""

from __future__ import annotations

import dataclasses
import inspect

from writing import prose

import plait

WIDTH = 100


def api_page() -> str:
    """The whole page; functions first."""
    named = {name: getattr(plait, name) for name in sorted(plait.__all__)}
    functions = {name: item for name, item in named.items() if not inspect.isclass(item)}
    classes = {name: item for name, item in named.items() if inspect.isclass(item)}
    words = ["# Python", prose(plait), "## Functions", *(_section(*one) for one in functions.items())]
    words += ["## Classes", *(_section(*one) for one in classes.items())]
    words.append("Errors are in [a page of their own](errors.md).")
    return "\n\n".join(words)


def _section(name: str, item: object) -> str:
    return f"### {name}\n\n```python\n{_signature(name, item)}\n```\n\n{_docstring(item)}"


def _docstring(item: object) -> str:
    """Without the signature that `dataclass` writes where a class has no docstring."""
    text = prose(item)
    return "" if dataclasses.is_dataclass(item) and text.startswith(f"{item.__name__}(") else text


def _signature(name: str, item: object) -> str:
    signature = inspect.signature(item)
    parameters = [_parameter(one) for one in signature.parameters.values()]
    returned = "" if inspect.isclass(item) or signature.return_annotation is signature.empty else _returned(signature)
    line = f"{name}({', '.join(map(str, parameters))}){returned}"
    if len(line) <= WIDTH:
        return line
    lines = "".join(f"    {one},\n" for one in parameters)
    return f"{name}(\n{lines}){returned}"


def _returned(signature: inspect.Signature) -> str:
    return f" -> {_written(signature.return_annotation)}"


def _written(annotation: object) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _parameter(one: inspect.Parameter) -> str:
    """Annotations as they are written; a default that has no short text of its own is shown as an ellipsis."""
    star = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
    text = f"{star}{one.name}"
    if one.annotation is not one.empty:
        text += f": {_written(one.annotation)}"
    if one.default is one.empty:
        return text
    shown = repr(one.default)
    return f"{text} = {'…' if ' object at 0x' in shown or shown.startswith('<') or len(shown) > 60 else shown}"
