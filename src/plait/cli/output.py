"""Where words go: data to stdout, words and progress to stderr. And how an error ends a verb."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, ParamSpec

import typer
from rich.console import Console

from plait.errors import PlaitError, PlanError, RunError, UsageError

P = ParamSpec("P")

USAGE_EXIT, RUN_EXIT, INTERRUPT_EXIT = 2, 1, 130


def words() -> Console:
    """The console for everything that is not data."""
    return Console(stderr=True, highlight=False)


def write_json(values: Mapping[str, Any]) -> None:
    """Data: one JSON object on stdout."""
    json.dump(values, sys.stdout, ensure_ascii=False)
    sys.stdout.write("\n")


def require_writable(path: Path, option: str = "-o", usual: str = "plan.toml") -> None:
    """A file can be written there. Errors: PlanError, before any work is done for it."""
    folder = path.parent
    if path.is_dir():
        raise PlanError(f"{option} {path} is a directory: give a file in it, as in {option} {path / usual}")
    if not folder.is_dir():
        raise PlanError(
            f"{option} {path} cannot be written: there is no directory {folder} (mkdir -p {folder} makes it)"
        )
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise PlanError(f"{option} {path} cannot be written: you may not write there")


def fail(error: PlaitError) -> NoReturn:
    """End with the error's words: exit 2 for what was given, 1 for what broke."""
    sys.stdout.flush()
    words().print(f"[bold red]error:[/] {_escaped(str(error))}", soft_wrap=True)
    raise typer.Exit(USAGE_EXIT if isinstance(error, UsageError) else RUN_EXIT)


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def verb(function: Callable[P, None]) -> Callable[P, None]:
    """A command whose Plait errors end it in words, not in a trace."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except PlaitError as error:
            fail(error)
        except BrokenPipeError:  # who read us has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(RUN_EXIT) from None
        except OSError as error:
            fail(RunError(f"the system says: {error}"))
        except KeyboardInterrupt:
            words().print("stopped")
            raise typer.Exit(INTERRUPT_EXIT) from None

    return wrapped
