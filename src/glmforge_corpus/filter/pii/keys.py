"""Rules for keys and tokens, each with a mark of its own in it, by which Hyperscan finds them.

Lengths are those that the services give out or gave out, and some shorter ones: a key that somebody has cut still shows
whose it is. Keys that say they are examples or repeat a few characters are left alone.
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
