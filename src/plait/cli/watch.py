"""What a person sees while a model is loaded and answers: bars on stderr, text on stdout as it comes."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, ProgressColumn, TaskID, TextColumn

from plait.generation.protocol import Token
from plait.plans.plan import Plan
from plait.text.tokenizer import StreamDecoder, Tokenizer


class AnswerStream:
    """Writes answers to stdout in the order of the requests: the first unfinished one as it comes, the others after."""

    def __init__(self, tokenizer: Tokenizer, requests: int) -> None:
        self._decoders: list[StreamDecoder] = [tokenizer.stream() for _ in range(requests)]
        self._texts = [f"[{number}] " if requests > 1 else "" for number in range(requests)]
        self._ended = [False] * requests
        self._current = 0

    def push(self, token: Token) -> None:
        """Take a token in."""
        number = token.request
        self._texts[number] += self._decoders[number].push(token.token)
        if token.finish_reason is not None:
            self._texts[number] += self._decoders[number].flush() + "\n"
            self._ended[number] = True
        self._write()

    def _write(self) -> None:
        while self._current < len(self._texts):
            sys.stdout.write(self._texts[self._current])
            self._texts[self._current] = ""
            if not self._ended[self._current]:
                break
            self._current += 1
        sys.stdout.flush()


def _progress(console: Console, figures: ProgressColumn) -> Progress:
    """Bars that vanish when they are full; nothing at all where nobody looks at a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), figures)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


class Watch:
    """Follows a generation: a bar for each stage while it loads, then the text, or a bar of tokens with --json."""

    def __init__(self, console: Console, max_tokens: int, *, as_json: bool) -> None:
        self._console, self._max_tokens, self._as_json = console, max_tokens, as_json
        self._bars = _progress(console, DownloadColumn())
        self._count = _progress(console, MofNCompleteColumn())
        self._ranks: dict[int, TaskID] = {}
        self._stream: AnswerStream | None = None
        self._requests = 0

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()
        self._count.stop()

    def say(self, text: str) -> None:
        """Something takes a while, and this is what."""
        self._console.print(text, style="dim", soft_wrap=True)

    def planned(self, plan: Plan, tokenizer: Tokenizer, requests: int) -> None:
        """The plan is made, and will run."""
        cut = ", ".join(f"{first} to {end - 1}" for first, end in plan.layout.cut)
        self.say(f"{plan.model}: layers {cut}; {plan.reason or plan.schedule}")
        self._requests = requests
        if not self._as_json:
            self._stream = AnswerStream(tokenizer, requests)

    def loading(self, rank: int, done_bytes: int, total_bytes: int) -> None:
        """A rank has loaded so many bytes of its weights."""
        if rank not in self._ranks:
            self._bars.start()
            self._ranks[rank] = self._bars.add_task(f"loading rank {rank}", total=total_bytes)
        self._bars.update(self._ranks[rank], completed=done_bytes)

    def ready(self) -> None:
        """All ranks are loaded."""
        self._bars.stop()
        if self._as_json:
            self._count.start()
            self._count.add_task("tokens", total=self._requests * self._max_tokens)

    def token(self, token: Token) -> None:
        """A token has come."""
        if self._stream is not None:
            self._stream.push(token)
        else:
            self._count.advance(TaskID(0))
