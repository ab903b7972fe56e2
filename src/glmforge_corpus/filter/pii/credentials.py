"""Passwords and keys that a program, a configuration or a URL gives by name: `password = "hunter2!"`, `API_KEY=...`.

Only the value is masked. The name is found by Hyperscan; what stands behind it decides:

* in quotes: a value without blanks. One of letters alone is a password only if capitals stand inside of it: the bulk of
  such pairs are labels of a form in some language ({"password": "Passwort"}). Values of "token" and "secret" have
  sixteen characters at least, for these words mean other things as well;
* without quotes: the value ends its line, has eight characters at least, letters and digits;
* in a URL, between the name and the "@": four characters at least.

What refers to a secret is none: names of variables, templates, calls, paths, URLs, and what says that it is an example.
"""

import re

_NAMES = (
    r"pass(?:word|wd|phrase|code)s?|pwd|api[_-]?keys?|(?:access|secret|private|auth|account|encryption|signing)[_-]?keys?|"
    r"(?:auth|access|bearer|refresh|api)[_-]?tokens?|client[_-]?secret"
)
_WEAK_NAMES = r"token|secret"

SCAN = (
    rf"(?:{_NAMES}|{_WEAK_NAMES})[\"']?\s?\]?\s{{0,8}}(?::|=|=>|:=|\s)\s{{0,8}}[^\s]",
    r"(?:密码|口令|密钥)(?:是|为)?(?::|：|=)",
    r"authorization[\"']?\s?[:=,]\s?[\"']?(?:bearer|basic|token)\s",
    r"://[^/\s:@\"'<>]{1,64}:[^/\s:@\"'<>]{4,64}@",
)
"""What Hyperscan looks for, in any case; a match ends at most a byte into the value, or behind a URL's "@"."""

BEFORE, BEHIND = 160, 400
"""Bytes before and behind the end of such a match within which the whole thing stands."""

_QUOTED = re.compile(
    rf"(?i)(?:(?P<strong>{_NAMES})|(?P<weak>{_WEAK_NAMES}))[\"']?\s?\]?\s{{0,8}}(?::=|=>|:|=)\s{{0,8}}(?:[bru]?[\"'])"
    r"(?P<value>[^\"'\s\\]{4,200})[\"']".encode()
)
_BARE = re.compile(
    rf"(?i)(?:(?P<strong>{_NAMES})|(?P<weak>{_WEAK_NAMES}))\s?(?:=|:)[ \t]{{0,8}}"
    r"(?P<value>[^\"'\s\\(){}\[\]<>$,;]{8,200})(?=[ \t]*(?:\r?\n|$|[#;,]))".encode()
)
_CHINESE = re.compile(r"(?:密码|口令|密钥)(?:是|为)?(?::|：|=) ?(?P<value>[!-~]{6,64})".encode())
_HEADER = re.compile(
    rb"(?i)authorization[\"']?\s?[:=,]\s?[\"']?(?:bearer|basic|token)\s{1,4}(?P<value>[A-Za-z0-9._~+/-]{12,2000}={0,2})"
)
_URL = re.compile(rb"://[^/\s:@\"'<>]{1,64}:(?P<value>[^/\s:@\"'<>]{4,64})@")

_NO_SECRET = re.compile(
    rb"(?i)example|placeholder|x{3}|\*{3}|\.{3}|your|dummy|change|insert|redacted|hidden|pass(?:wor|wd|phrase|code)|"
    rb"contrase|parol|motdepasse|pwd|secret|token|(?:api|access|private|auth)[_-]?key|://|^[/~]|^\$|[${}<>()\[\]]|^%\w|^(?:none|null|true|false|"
    rb"undefined|string|test(?:ing)?|foobar|os\.|env|process|self\.|config|settings|this\.)"
)


def credential_span(data: bytes, end: int) -> tuple[int, int] | None:
    """The value of the credential in `data`, a name's match of which ended at `end`."""
    for shape in (_QUOTED, _BARE, _CHINESE, _HEADER, _URL):
        for match in shape.finditer(data, max(0, end - BEFORE)):
            if match.start() >= end:
                break
            if match.end() < end:
                continue
            groups = match.groupdict()
            if _is_secret(groups["value"], shape, weak=groups.get("weak") is not None):
                return match.span("value")
    return None


def _is_secret(value: bytes, shape: re.Pattern[bytes], *, weak: bool) -> bool:
    if _NO_SECRET.search(value) or len(set(value)) < 4:
        return False
    digits, letters = re.search(rb"\d", value) is not None, re.search(rb"[A-Za-z]", value) is not None
    if weak:
        return len(value) >= 16 and digits and letters
    if shape is _URL:
        return True
    if shape is not _QUOTED:
        return digits and letters
    if not digits and value.isalpha():
        return len(value) >= 8 and re.search(rb"[a-z][A-Z]", value) is not None and not value[:1].islower()
    return digits or re.search(rb"[^\w.-]", value) is not None or value.count(b"-") >= 2
