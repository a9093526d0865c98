"""The command line's page: every verb with its arguments and options, from the Typer app itself."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Literal, get_args, get_origin

from typer.main import get_command
from writing import code, table

from plait.cli.main import app
from plait.cli.output import INTERRUPT_EXIT, RUN_EXIT, USAGE_EXIT


def cli_page() -> str:
    """The whole page."""
    root = get_command(app)
    verbs = list(_commands(root, "plait"))
    listed = table(
        ("verb", "what it does"),
        [(f"[{code(name)}](#{name.replace(' ', '-')})", _first(command)) for name, command in verbs],
    )
    return (
        "# Command line\n\n"
        f"{root.help}\n\n{listed}\n\n"
        "Data goes to stdout, words and progress to stderr. Exit status: 0 where it did what was asked, "
        f"{USAGE_EXIT} where what was given cannot work, {RUN_EXIT} where a run broke or a comparison was outside "
        f"its bound, {INTERRUPT_EXIT} after Ctrl-C. `NO_COLOR` turns colours off. `python -m plait` is the same "
        "command.\n\n" + "\n".join(_section(name, command) for name, command in verbs)
    )


def _commands(command: object, name: str) -> Iterator[tuple[str, object]]:
    """Every verb, also below groups, in the order of the app."""
    children = getattr(command, "commands", None)
    if children is None:
        yield name, command
        return
    for child_name, child in children.items():
        if not child.hidden:
            yield from _commands(child, f"{name} {child_name}")


def _first(command: object) -> str:
    return _help(command).split("\n\n")[0]


def _help(command: object) -> str:
    return inspect.cleandoc(getattr(command, "help", None) or "")


def _section(name: str, command: object) -> str:
    parameters = [one for one in command.params if not getattr(one, "hidden", False) and one.name != "help"]
    arguments = [one for one in parameters if one.param_type_name == "argument"]
    options = [one for one in parameters if one.param_type_name == "option"]
    words = [f"## {name}", _help(command), f"    {name} {_usage(arguments, options)}"]
    if arguments:
        rows = [(code(_metavar(one)), one.help or "", _default(one)) for one in arguments]
        words.append(table(("argument", "what it is", "default"), rows))
    if options:
        rows = [(_names(one), _type(one), one.help or "", _default(one)) for one in options]
        words.append(table(("option", "value", "what it does", "default"), rows))
    return "\n\n".join(words) + "\n"


def _usage(arguments: list, options: list) -> str:
    names = list(map(_metavar, arguments))
    given = [name if one.required else f"[{name}]" for one, name in zip(arguments, names, strict=True)]
    return " ".join([*given, *(["[OPTIONS]"] if options else [])])


def _metavar(one: object) -> str:
    return f"{one.name.upper()}{'…' if one.nargs == -1 else ''}"


def _names(one: object) -> str:
    names = [*one.opts, *one.secondary_opts]
    return ", ".join(map(code, names))


def _type(one: object) -> str:
    """What an option takes; nothing for one that is only named."""
    if one.is_flag:
        return ""
    words = _kind(one.type_descriptor.annotation)
    if one.min is not None or one.max is not None:
        words += f", {_range(one.min, one.max)}"
    return f"{words}; may be given again" if one.multiple else words


def _kind(annotation: object) -> str:
    if get_origin(annotation) is Literal:
        return ", ".join(map(str, get_args(annotation)))
    if inspect.isclass(annotation) and issubclass(annotation, Enum):
        return ", ".join(str(one.value) for one in annotation)
    inner = [one for one in get_args(annotation) if one is not type(None)]
    if inner:
        return _kind(inner[0])
    known = {str: "text", int: "number", float: "number", Path: "path"}
    return known.get(annotation, getattr(annotation, "__name__", "value"))


def _range(low: float | None, high: float | None) -> str:
    if high is None:
        return f"at least {low:g}"
    return f"at most {high:g}" if low is None else f"{low:g} to {high:g}"


def _default(one: object) -> str:
    shown = getattr(one, "show_default", None)
    if isinstance(shown, str):
        return shown
    if one.required:
        return "needed"
    value = one.default
    plain = isinstance(value, str | int | float) and not isinstance(value, bool)
    return code(str(value)) if plain and str(value) else ""
