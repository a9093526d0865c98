"""Tokenizers from a Hugging Face directory and from GGUF metadata.

A `tokenizer.json` is read as it is, and says itself which ends of text it adds. Anything else is converted once by
`transformers` (its import takes seconds) and kept in the cache. GGUF follows `transformers` reading the same file,
token for token; in one place that is not the tokenizer a model was trained with: docs/decisions/0002 says where.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.errors import WeightsError
from plait.text.cache import cache_key, cached_tokenizer
from plait.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import tokenizers

_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
_CONVERTIBLE = (("vocab.json", "merges.txt"), ("tokenizer.model",))
_GGUF_FIELDS = {
    "model": "tokenizer_type",
    "pre": "pre_tokenizer_type",
    "tokens": "tokens",
    "scores": "scores",
    "token_type": "token_type",
    "merges": "merges",
    "precompiled_charsmap": "precompiled_charsmap",
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
    "unknown_token_id": "unk_token_id",
    "padding_token_id": "pad_token_id",
    "add_space_prefix": "add_prefix_space",
}
_GGUF_ROLES = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
_GGUF_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")


def tokenizer_from_directory(directory: Path) -> Tokenizer:
    """The tokenizer of a Hugging Face model directory, with its chat template and end-of-text ids."""
    backend = _directory_backend(directory)
    backend.no_truncation()
    backend.no_padding()
    config = _json(directory / "tokenizer_config.json")
    roles = _roles({**_json(directory / "special_tokens_map.json"), **config})
    _add_missing(backend, config)
    ends = _ids(_json(directory / "generation_config.json").get("eos_token_id"))
    ends = ends or _ids(_json(directory / "config.json").get("eos_token_id"))
    return Tokenizer(
        backend=backend,
        source=str(directory),
        bos=_role_id(backend, roles, "bos_token"),
        eos=_distinct((*ends, *_ids(_role_id(backend, roles, "eos_token")))),
        special_tokens=roles,
        chat_template=_directory_template(directory, config),
    )


def tokenizer_from_gguf(metadata: Mapping[str, Any], source: str = "the GGUF file") -> Tokenizer:
    """The tokenizer that GGUF metadata (key to plain value) describes. Converting takes about 1 s, the first time."""
    values = {key.removeprefix("tokenizer.ggml."): value for key, value in metadata.items()}
    tokens = values.get("tokens")
    if not tokens:
        raise WeightsError(
            f"{source} holds no tokenizer: it has no tokenizer.ggml.tokens; take a GGUF file made by "
            "llama.cpp's converter, or give the model's Hugging Face directory"
        )
    fields = {ours: values[key] for key, ours in _GGUF_FIELDS.items() if key in values}
    roles = {role: tokens[values[key]] for role, key in _GGUF_ROLES.items() if values.get(key) is not None}
    first = bool(values.get("add_bos_token", values.get("model") == "llama"))
    last = bool(values.get("add_eos_token", False))
    architecture = str(metadata.get("general.architecture", ""))

    def convert() -> tokenizers.Tokenizer:
        backend = _convert_gguf(architecture, fields, source)
        _set_ends(backend, roles, first, last)
        return backend

    return Tokenizer(
        backend=cached_tokenizer(cache_key("gguf", architecture, fields, roles, first, last), convert),
        source=source,
        bos=values.get("bos_token_id"),
        eos=_distinct(token for key in _GGUF_ENDS for token in _ids(values.get(key))),
        special_tokens=roles,
        chat_template=metadata.get("tokenizer.chat_template"),
    )


def _convert_gguf(architecture: str, fields: Mapping[str, Any], source: str) -> tokenizers.Tokenizer:
    from transformers.integrations.gguf import convert_gguf_tokenizer

    try:
        backend: tokenizers.Tokenizer = convert_gguf_tokenizer(architecture, dict(fields))[0]
    except (ValueError, KeyError) as error:
        raise WeightsError(
            f"{source} has a tokenizer of kind {fields.get('tokenizer_type')!r} that transformers cannot convert: "
            f"{error}; give the model's Hugging Face directory"
        ) from error
    return backend


def _directory_backend(directory: Path) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer as Backend

    path = directory / "tokenizer.json"
    if not path.is_file():
        return _converted_directory(directory)
    try:
        return Backend.from_file(str(path))
    except Exception as error:  # the library raises plain Exception for whatever is wrong with a file
        raise WeightsError(f"{path} cannot be read: {error}; fetch the file again") from error


def _converted_directory(directory: Path) -> tokenizers.Tokenizer:
    names = next((group for group in _CONVERTIBLE if all((directory / name).is_file() for name in group)), None)
    if names is None:
        raise WeightsError(
            f"{directory} holds no tokenizer: need tokenizer.json, or vocab.json with merges.txt, or "
            "tokenizer.model; copy it from the model's page"
        )
    inputs = (*names, "tokenizer_config.json", "added_tokens.json", "special_tokens_map.json")
    contents = [(directory / name).read_bytes() for name in inputs if (directory / name).is_file()]
    return cached_tokenizer(cache_key("directory", *names, *contents), lambda: _convert(directory, names))


def _convert(directory: Path, names: tuple[str, ...]) -> tokenizers.Tokenizer:
    from transformers import AutoTokenizer

    try:
        made = AutoTokenizer.from_pretrained(str(directory), local_files_only=True, trust_remote_code=False)
        backend: tokenizers.Tokenizer = made.backend_tokenizer
    except Exception as error:  # whatever it is, the way out is the same
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise WeightsError(
            f"{directory} has no tokenizer.json, and transformers cannot convert its {' and '.join(names)}: "
            f"{reason}; get tokenizer.json from the model's page"
        ) from error
    return backend


def _add_missing(backend: tokenizers.Tokenizer, config: Mapping[str, Any]) -> None:
    """Add the tokens that only tokenizer_config.json knows, in the order of their ids."""
    from tokenizers import AddedToken

    listed = config.get("added_tokens_decoder", {})
    for _, entry in sorted(listed.items(), key=lambda item: int(item[0])):
        if backend.token_to_id(entry["content"]) is None:
            backend.add_tokens([AddedToken(**{key: value for key, value in entry.items() if key != "__type"})])


def _set_ends(backend: tokenizers.Tokenizer, roles: Mapping[str, str], first: bool, last: bool) -> None:
    """Make encoding add the beginning and the end of text, or neither."""
    from tokenizers.processors import TemplateProcessing

    bos = roles.get("bos_token") if first else None
    eos = roles.get("eos_token") if last else None
    single = " ".join(part for part in (bos and f"{bos}:0", "$A:0", eos and f"{eos}:0") if part)
    ends = [(word, backend.token_to_id(word)) for word in (bos, eos) if word]
    backend.post_processor = TemplateProcessing(single=single, pair=f"{single} $B:1", special_tokens=ends)


def _directory_template(directory: Path, config: Mapping[str, Any]) -> str | None:
    path = directory / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # several by name
        named = {entry["name"]: entry["template"] for entry in template}
        return named.get("default")
    return template


def _roles(config: Mapping[str, Any]) -> dict[str, str]:
    found = {role: config[role] for role in _ROLES if config.get(role) is not None}
    return {role: word["content"] if isinstance(word, dict) else str(word) for role, word in found.items()}


def _role_id(backend: tokenizers.Tokenizer, roles: Mapping[str, str], role: str) -> int | None:
    return backend.token_to_id(roles[role]) if role in roles else None


def _ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)


def _distinct(ids: Iterable[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(ids))


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise WeightsError(f"{path} is not JSON: {error}; fetch the file again") from error
    return content if isinstance(content, dict) else {}
