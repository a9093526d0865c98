"""Text to token ids and back, and the decoder that turns a stream of ids into a stream of text.

The work is done by the `tokenizers` library. It is imported where a tokenizer is made (`plait.text.loading`), so that
this room costs nothing to those who only plan or draw.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from plait.errors import RequestError

if TYPE_CHECKING:
    import tokenizers

_REPLACEMENT = "\ufffd"


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A vocabulary with the ids and words that its model treats as special.

    `eos` holds every id that ends a text. `special_tokens` maps roles ("bos_token") to text, as chat templates
    want them. `source` is the file or directory it came from: errors name it.
    """

    backend: tokenizers.Tokenizer
    source: str
    bos: int | None = None
    eos: tuple[int, ...] = ()
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    chat_template: str | None = None

    @property
    def vocab_size(self) -> int:
        """How many ids there are, added tokens included."""
        return int(self.backend.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """Token ids of `text`; `add_special` puts the beginning (or end) of text where the model wants one.

        Special tokens that are spelled out in `text` become their ids. A rendered chat holds all of its own:
        encode it with `add_special=False`.
        """
        try:
            return list(self.backend.encode(text, add_special_tokens=add_special).ids)
        except (TypeError, UnicodeEncodeError):
            raise RequestError(_not_unicode(text)) from None

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """The text of `ids`; bytes that are not UTF-8 become U+FFFD."""
        return str(self.backend.decode(list(ids), skip_special_tokens=skip_special))

    def special_ids(self) -> frozenset[int]:
        """Ids that `decode` leaves out."""
        added = self.backend.get_added_tokens_decoder()
        return frozenset(token for token, word in added.items() if word.special)

    def stream(self, skip_special: bool = True) -> StreamDecoder:
        """A decoder for one request's tokens as they come."""
        return StreamDecoder(self, skip_special)


class StreamDecoder:
    """Decodes one request's tokens as they come. All that it returns, joined, is the `decode` of all.

    A token may hold a part of a character, or its text may depend on its left neighbour (a leading space). So the
    tokens since the last but one emission are decoded together, and nothing is emitted while they end in an
    unfinished character. Byte tokens of a sentencepiece vocabulary wait for the end of their run: one wrong byte
    changes the text of all of it.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = True) -> None:
        self._decode = tokenizer.decode
        self._word = tokenizer.backend.id_to_token
        self._skipped = tokenizer.special_ids() if skip_special else frozenset()
        self._skip_special = skip_special
        self._byte_ids = _byte_ids(tokenizer.backend)
        self._window: list[int] = []
        self._shown = 0  # tokens at the head of the window whose text is out
        self._shown_text = ""

    def push(self, token: int) -> str:
        """The text that is certain after `token`; empty while a character is unfinished."""
        if token in self._skipped or self._word(token) is None:  # a padded LM head has more rows than there are words
            return ""
        self._window.append(token)
        text = self._decode(self._window, self._skip_special)
        if text.endswith(_REPLACEMENT) or token in self._byte_ids or len(text) <= len(self._shown_text):
            return ""
        return self._emit(text)

    def flush(self) -> str:
        """What is left at the end, unfinished characters as U+FFFD."""
        text = self._decode(self._window, self._skip_special)
        fresh = text[len(self._shown_text) :]
        self._window, self._shown, self._shown_text = [], 0, ""
        return fresh

    def _emit(self, text: str) -> str:
        fresh = text[len(self._shown_text) :]
        self._window = self._window[self._shown :]
        self._shown = len(self._window)
        self._shown_text = self._decode(self._window, self._skip_special)
        return fresh


def _byte_ids(backend: tokenizers.Tokenizer) -> frozenset[int]:
    """Ids of the byte tokens ``<0x00>`` to ``<0xFF>``, where a sentencepiece vocabulary has them."""
    found = (backend.token_to_id(f"<0x{byte:02X}>") for byte in range(256))
    return frozenset(token for token in found if token is not None)


def _not_unicode(text: str) -> str:
    wrong = next((i for i, letter in enumerate(text) if "\ud800" <= letter <= "\udfff"), 0)
    return f"the prompt is not valid Unicode: character {wrong + 1} is {text[wrong]!r}; give it as UTF-8 text"
