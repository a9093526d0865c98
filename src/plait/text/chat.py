"""Chat templates: messages in, the text that the model was trained to answer out.

Rendered as `transformers` does it: the same sandbox, the same switches, the same helpers. Templates come from
strangers; the sandbox is what keeps them from running code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from plait.errors import RequestError
from plait.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import jinja2

Message = Mapping[str, Any]


def render_chat(tokenizer: Tokenizer, messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
    """The text of `messages` (each with "role" and "content") as the model's template writes it.

    `add_generation_prompt` ends it where the answer begins. Encode it with `add_special=False`.
    """
    from jinja2 import TemplateError

    if tokenizer.chat_template is None:
        raise RequestError(
            f"{tokenizer.source} has no chat template, so a chat cannot be written for it; "
            "use --raw to continue the prompt as plain text"
        )
    try:
        return _compiled(tokenizer.chat_template).render(
            messages=list(messages),
            tools=None,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **tokenizer.special_tokens,
        )
    except (TemplateError, TypeError, ValueError, KeyError) as error:
        raise RequestError(
            f"the chat template of {tokenizer.source} fails: {error}; use --raw to continue the prompt as plain text"
        ) from error


def chat_prompt(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """Token ids of one user's message, up to where the answer begins."""
    text = render_chat(tokenizer, [{"role": "user", "content": prompt}])
    return tokenizer.encode(text, add_special=False)


def _compiled(template: str) -> jinja2.Template:
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_generation_tag(), loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment.from_string(template)


def _generation_tag() -> type[jinja2.ext.Extension]:
    """``{% generation %}`` marks the assistant's words for training; the text is as if it were not there."""
    from jinja2 import nodes, parser
    from jinja2.ext import Extension

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012 (jinja2's own declaration)

        def parse(self, parser: parser.Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    return Generation


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML, which no model wants."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
