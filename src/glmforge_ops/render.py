"""Scripts and configurations from templates, in which every value is quoted.

A value reaches a script only through a filter that makes it safe there: `word` and `words` (of a shell), `note` (a
comment), `scalar` (YAML), `number`, `name` (checked by a pattern), `quoted` (a path for ssh). A value without a filter
is an error.
"""

import math
import re
import shlex
from collections.abc import Iterable

import jinja2
import yaml
from jinja2.sandbox import ImmutableSandboxedEnvironment

from glmforge.errors import HostError
from glmforge.files import escaped, shown

_NAME = re.compile(r"[A-Za-z0-9_\[][A-Za-z0-9_.@:%\[\],-]*")


class _Safe(str):
    """Text that may stand where it is put."""


def word(value: object) -> str:
    """One word for a POSIX shell. One that begins with a dash is still an option: put `--` before it."""
    return _Safe(shlex.quote(str(value)))


def words(values: Iterable[object]) -> str:
    """Several words for a POSIX shell, with spaces between them."""
    return _Safe(" ".join(map(word, values)))


def name(value: object) -> str:
    """A host, account, interface or similar. Raises `HostError`."""
    if not _NAME.fullmatch(str(value)):
        raise HostError(f"{shown(value)}: is not a name that a script can hold; correct it")
    return _Safe(value)


def note(value: object) -> str:
    """Within a comment."""
    return _Safe(escaped(str(value)))


def quoted(value: object) -> str:
    """A path for ssh's configuration, which cannot hold quotation marks. Raises `HostError`."""
    text = str(value)
    if '"' in text or "%" in text or not text.isprintable():
        raise HostError(f"{shown(text)}: ssh's configuration cannot hold this path; choose another")
    return _Safe(f'"{text}"')


def scalar(value: object) -> str:
    """A value of YAML, with quotation marks where it needs them."""
    text = yaml.safe_dump(value if value is None else str(value), width=math.inf, allow_unicode=True)
    return _Safe(text.removesuffix("\n").removesuffix("\n..."))


def number(value: int) -> str:
    return _Safe(int(value))


def _only_safe(value: object) -> object:
    if isinstance(value, _Safe):
        return value
    raise TypeError(f"a template puts {value!r} into a script without a filter")


def safe_environment(loader: jinja2.BaseLoader, *, sandboxed: bool = False) -> jinja2.Environment:
    """Where templates are rendered. `sandboxed`: for templates of others, which reach nothing of Python's."""
    environment = (ImmutableSandboxedEnvironment if sandboxed else jinja2.Environment)(
        loader=loader,
        undefined=jinja2.StrictUndefined,
        finalize=_only_safe,
        comment_start_string="{##",  # "{#" is bash's: ${#array[@]}
        comment_end_string="##}",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {of.__name__: of for of in (word, words, name, note, quoted, number, scalar)}
    return environment
