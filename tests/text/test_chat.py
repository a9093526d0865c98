"""Chat templates of well-known shapes, rendered as transformers renders them."""

from __future__ import annotations

from typing import Any

import pytest
import tokenizers
from tokenizers import models

from plait.errors import RequestError
from plait.text.chat import render_chat
from plait.text.tokenizer import Tokenizer

ROLES = {"bos_token": "<s>", "eos_token": "</s>"}
CHATML = """
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""
LLAMA_2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
    "{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if loop.index0 == 0 and system_message %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n'"
    " + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content | trim + ' [/INST]' }}"
    "{% else %}{{ ' ' + content | trim + ' ' + eos_token }}{% endif %}{% endfor %}"
)
LLAMA_3 = """{{- bos_token }}
{%- set ns = namespace(date=none) %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%Y") %}
    {%- endif %}
{%- endif %}
{%- for message in messages if message.role != "tool" %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + date_string }}
{%- endfor %}
{%- if tools is not none %}{{- tools | tojson(indent=4) }}{%- endif %}
"""
PHI_3 = """{% for message in messages %}
  {% if message['role'] == 'user' %}
{{ '<|user|>\n' + message['content'] + '<|end|>' }}
  {% elif message['role'] == 'assistant' %}
    {% generation %}
{{ '<|assistant|>\n' + message['content'] + '<|end|>' }}
    {% endgeneration %}
  {% else %}{% continue %}{% endif %}
{% endfor %}
{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"""
JSON = "{{ messages | tojson }} {{ {'b': 1, 'a': '<é>'} | tojson(sort_keys=true) }}"
CHATS = [
    [{"role": "user", "content": " Hi <b>\n"}],
    [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}],
    [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2 "}, {"role": "user", "content": "3"}],
]


def tokenizer(template: str | None) -> Tokenizer:
    return Tokenizer(tokenizers.Tokenizer(models.BPE()), "some/model", special_tokens=ROLES, chat_template=template)


@pytest.fixture(scope="module")
def theirs() -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(models.BPE()), **ROLES)


@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("template", [CHATML, LLAMA_2, LLAMA_3, PHI_3, JSON])
def test_equals_transformers(template: str, chat: list[dict[str, str]], prompt: bool, theirs: Any) -> None:
    expected = theirs.apply_chat_template(chat, chat_template=template, add_generation_prompt=prompt, tokenize=False)
    assert render_chat(tokenizer(template), chat, prompt) == expected


def failure(template: str | None, chat: list[dict[str, str]]) -> str:
    with pytest.raises(RequestError) as caught:
        render_chat(tokenizer(template), chat)
    return str(caught.value)


def test_no_template() -> None:
    assert failure(None, CHATS[0]) == (
        "some/model has no chat template, so a chat cannot be written for it; "
        "use --raw to continue the prompt as plain text"
    )


def test_template_refuses() -> None:
    assert failure(LLAMA_2, CHATS[2][1:]) == (
        "the chat template of some/model fails: Conversation roles must alternate user/assistant/user/assistant/...; "
        "use --raw to continue the prompt as plain text"
    )


def test_template_is_broken() -> None:
    assert failure("{% if %}", CHATS[0]) == (
        "the chat template of some/model fails: Expected an expression, got 'end of statement block'; "
        "use --raw to continue the prompt as plain text"
    )


def test_template_cannot_reach_python() -> None:
    assert "access to attribute '__class__' of 'str' object is unsafe" in failure("{{ ''.__class__.x }}", CHATS[0])
