"""Keys, tokens and passwords: what Hyperscan looks for, and the rules that decide.

Keys and tokens are found by a mark of their own (`ghp_`). Their lengths are those that the services give out or gave
out, and some shorter ones: a key that was cut still shows whose it is. Keys that say they are examples or repeat a few
characters are left alone.

Credentials are found by a name in a program, a configuration or a URL (`password = "hunter2!"`, `API_KEY=...`); only
the value is masked, and what it looks like decides:

* in quotes: a value without blanks. One of letters alone is a password only if capitals stand inside of it: most such
  pairs are labels of a form in some language ({"password": "Passwort"}). Values of "token" and "secret" have at least
  sixteen characters, for these words mean other things as well;
* without quotes: the value ends its line and has at least eight characters, letters and digits;
* in a URL, between the name and the "@": at least four characters.

Names of variables, templates, calls, paths, URLs, and what says that it is an example are not secrets.
"""

import re

_PRIVATE_KEY = (
    rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----[\s\S]{0,16384}?"
    rb"-----END (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----"
)
_TOKENS = {
    b"-----BEGIN ": _PRIVATE_KEY,
    b"AKIA": rb"AKIA[A-Z2-7]{16}",
    b"ASIA": rb"ASIA[A-Z2-7]{16}",
    b"ghp_": rb"ghp_[A-Za-z0-9]{20,76}",
    b"gho_": rb"gho_[A-Za-z0-9]{20,76}",
    b"ghu_": rb"ghu_[A-Za-z0-9]{20,76}",
    b"ghs_": rb"ghs_[A-Za-z0-9]{20,76}",
    b"ghr_": rb"ghr_[A-Za-z0-9]{20,76}",
    b"github_pat_": rb"github_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59}",
    b"glpat-": rb"glpat-[A-Za-z0-9_-]{16,64}",
    b"xoxa-": rb"xoxa-[A-Za-z0-9-]{10,120}",
    b"xoxb-": rb"xoxb-[A-Za-z0-9-]{10,120}",
    b"xoxp-": rb"xoxp-[A-Za-z0-9-]{10,120}",
    b"xoxr-": rb"xoxr-[A-Za-z0-9-]{10,120}",
    b"xoxs-": rb"xoxs-[A-Za-z0-9-]{10,120}",
    b"hooks.slack.com/services/": rb"hooks\.slack\.com/services/T[A-Z0-9]{6,12}/B[A-Z0-9]{6,12}/[A-Za-z0-9]{20,28}",
    b"AIza": rb"AIza[A-Za-z0-9_-]{30,40}",
    b"sk_live_": rb"sk_live_[A-Za-z0-9]{16,120}",
    b"rk_live_": rb"rk_live_[A-Za-z0-9]{16,120}",
    b"sk-proj-": rb"sk-proj-[A-Za-z0-9_-]{16,200}",
    b"sk-ant-": rb"sk-ant-[A-Za-z0-9_-]{16,200}",
    b"sk_test_": rb"sk_test_[A-Za-z0-9]{16,120}",
    b"sk-": rb"sk-(?!proj-|ant-)(?:(?:or-v1|svcacct|admin|lf)-)?(?=[A-Za-z]*\d)[A-Za-z0-9]{16,100}",
    b"hf_": rb"hf_[A-Za-z0-9]{20,40}",
    b"npm_": rb"npm_[A-Za-z0-9]{20,40}",
    b"pypi-AgEIcHlwaS5vcmc": rb"pypi-AgEIcHlwaS5vcmc[A-Za-z0-9_-]{50,300}",
    b"SG.": rb"SG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}",
    b".eyJ": rb"eyJ[A-Za-z0-9_-]{10,1000}\.eyJ[A-Za-z0-9_-]{10,4000}\.[A-Za-z0-9_-]{10,1000}",
}
SECRET_MARKS = tuple(_TOKENS)
"""What a key or token has in it; Hyperscan looks for these."""

_SHAPES = tuple(re.compile(rb"(?<![A-Za-z0-9_-])" + shape + rb"(?![A-Za-z0-9_-])") for shape in _TOKENS.values())
_SAYS_EXAMPLE = re.compile(rb"(?i)example|placeholder|xxxx|your[_-]?|dummy")
_KEY_LINE = re.compile(rb"[A-Za-z0-9+/]{32}")
_PEM, _JWT = (SECRET_MARKS.index(mark) for mark in (b"-----BEGIN ", b".eyJ"))


_HEADS = {_PEM: re.compile(rb"-----BEGIN (?:[A-Z0-9]+ ){0,4}PRIVATE KEY"), _JWT: re.compile(rb"\.eyJ[A-Za-z0-9_-]{10}")}
_JWT_LEAD = re.compile(rb"[A-Za-z0-9_-]{13}")


def secret_may_begin(mark: int, before: bytes, behind: bytes) -> bool:
    """A first look at the bytes before a mark, and from the mark on: spares long texts full of marks."""
    if mark == _JWT and not _JWT_LEAD.match(before[-13:]):
        return False
    return mark not in _HEADS or _HEADS[mark].match(behind) is not None


def secret_reach(mark: int) -> tuple[int, int]:
    """Bytes before and behind the mark within which a whole key stands."""
    return {_PEM: (1, 17000), _JWT: (1012, 5100)}.get(mark, (1, 400))


def secret_span(mark: int, data: bytes, at: int) -> tuple[int, int] | None:
    """The key around the mark that stands at `at` in `data`, a key's reach at least."""
    for match in _SHAPES[mark].finditer(data, max(0, at - secret_reach(mark)[0])):
        if match.start() > at:
            return None
        if match.end() > at:
            return match.span() if _is_real(match[0]) else None
    return None


def _is_real(key: bytes) -> bool:
    if key.startswith(b"-----"):
        return _KEY_LINE.search(key) is not None
    return not _SAYS_EXAMPLE.search(key) and len(set(key)) >= 12


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
