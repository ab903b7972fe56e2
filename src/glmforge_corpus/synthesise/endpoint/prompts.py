"""What is sent: prompts from files, requests with keys that are the same on every run."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from glmforge.errors import ConfigError

_QUESTION = re.compile(r"<question>\s*(.+?)\s*</question>(?:\s*<answer>\s*(.+?)\s*</answer>)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Request:
    """One chat completion to be asked for.

    Attributes:
        key: names the request: a hash of the payload, what it is for, and which sample it is.
        payload: the JSON to send.
        prompt_bytes: of the messages' text.
    """

    key: str
    payload: Mapping[str, Any]
    prompt_bytes: int


def load_template(path: Path | None, default: str, names: tuple[str, ...]) -> Template:
    """A prompt file (Jinja), or the one that comes with the package.

    Raises:
        ConfigError: the file cannot be read, is no template, or does not use what it is for.
    """
    try:
        text = (files("glmforge_corpus.synthesise") / "prompts" / default if path is None else path).read_text("utf-8")
        environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=False)
        template = environment.from_string(text)
        marks = {name: f"\0{name}\0" for name in names}
        rendered = template.render(count=1, **marks)
    except OSError as error:
        raise ConfigError(f"prompt {path}: cannot be read ({error.strerror}): check the path") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"prompt {path}: not UTF-8 text: give a Jinja file") from error
    except TemplateError as error:
        raise ConfigError(f"prompt {path}: {error}: it may use {', '.join(names)}") from error
    for name, mark in marks.items():
        if mark not in rendered:
            raise ConfigError(f"prompt {path}: does not use {{{{ {name} }}}}: insert it where the text belongs")
    return template


def make_request(prompt: str, purpose: str, sample: int, sampling: Mapping[str, Any], send_seed: bool) -> Request:
    """The request for sample `sample` of a prompt.

    Args:
        sampling: model, temperature, max_tokens, ...
        send_seed: add a seed, derived from the key, for servers that repeat themselves on demand.
    """
    payload = {**sampling, "messages": [{"role": "user", "content": prompt}]}
    named = json.dumps([purpose, sample, payload], sort_keys=True, ensure_ascii=False)
    digest = hashlib.blake2b(named.encode(), digest_size=16).digest()
    if send_seed:
        payload["seed"] = int.from_bytes(digest[:4], "little") >> 1
    return Request(digest.hex(), payload, len(prompt.encode()))


def parse_questions(text: str) -> list[tuple[str, str | None]]:
    """(question, answer or None) of each question that a reply spells out; thinking is left out."""
    return [(q, a or None) for q, a in _QUESTION.findall(text.rpartition("</think>")[2])]
