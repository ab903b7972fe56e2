"""Text and records without their secrets: what may leave the machine of a run.

Three nets, since each has holes. Names: what stands under `password`, `HF_TOKEN`, `Authorization` goes. Forms: tokens
that their issuers gave a form (AWS, Hugging Face, GitHub, ...), private keys, URLs with credentials. Values: whatever
this process's own secret variables hold, wherever it stands. A secret of no form under no name cannot be told from a
word. Hashes in hex, numbers and `tokens` of text stay.
"""

import os
import re
from collections.abc import Mapping
from typing import Any

from glmforge.config.secrets import HIDDEN, is_secret

_STRONG = r"pass(?:w(?:or)?d|phrase|wd)|pwd|secret|authorization|cookie|credential"
_WEAK = (
    r"token(?![a-z])|api[_-]?key|(?:access|account|private|signing|encryption|license|shared|master|auth|ssh|client|"
    r"subscription|deploy|service)[_-]?key|auth(?!or|en)|(?<![a-z])sig(?:nature)?(?![a-z])|(?<![a-z])pat(?![a-z])"
)
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?|true|false|null|none|~", re.IGNORECASE)
_STRONG_NAME, _WEAK_NAME = (re.compile(names, re.IGNORECASE) for names in (_STRONG, _WEAK))
_ENVIRONMENTS = {"env", "environ", "environment"}
_QUOTED = r"\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|\\\"[^\"\n]*?\\\""


def _named(names: str, bare: str) -> re.Pattern[str]:
    """NAME = VALUE and NAME: VALUE, quoted or not; also --NAME VALUE."""
    name = rf"[\w.-]{{0,64}}?(?:{names})[\w.-]{{0,64}}"  # bounded: a hostile line costs no quadratic time
    return re.compile(rf"(?P<name>--{name}[ =]+|{name}\\?[\"']?\s*[:=]+\s*)(?P<value>{_QUOTED}|{bare})", re.IGNORECASE)


_BY_NAME = (_named(_STRONG, r"[^\n,;&\"'}\]]+"), _named(_WEAK, r"(?:bearer |basic |token )?[^\s,;&\"'}\])]+"))
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----|\Z)", re.DOTALL
)
_END_OF_KEY = re.compile(r"\A(?:(?!-----BEGIN).)*?-----END [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----", re.DOTALL)
_FORMS = (
    (re.compile(r"(\b[a-z][a-z0-9+.-]{0,20}://)[^\s/\"'<>]+@", re.IGNORECASE), rf"\1{HIDDEN}@"),
    (re.compile(r"\b(?:AKIA|ASIA|AGPA|AIDA|AROA|ANPA)[A-Z0-9]{16}\b"), HIDDEN),
    (
        re.compile(r"\b(?:hf|api_org|gh[pousr]|github_pat|glpat|npm|pypi|dop_v1|wandb_v1|shpat|nvapi)[_-][\w-]{16,}"),
        HIDDEN,
    ),
    (re.compile(r"\b(?:sk|rk|pk)[-_][\w-]{16,}"), HIDDEN),
    (re.compile(r"\bxox[a-z]-[\w-]{10,}|\bAIza[\w-]{30,}|\bya29\.[\w.-]{10,}|\bSG\.[\w-]{10,}\.[\w-]{10,}"), HIDDEN),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"), HIDDEN),
    (re.compile(r"https://hooks\.slack\.com/\S+"), HIDDEN),
    (re.compile(r"(\bbearer\s+)[\w.~+/=-]{6,}", re.IGNORECASE), rf"\1{HIDDEN}"),
    (re.compile(r"(\bBasic\s+)(?=[a-z]*[A-Z0-9])[A-Za-z0-9+/]{8,}={0,2}"), rf"\1{HIDDEN}"),
    (re.compile(r"(\b(?:password|passwd|passphrase)\s+)[^\s\"']+", re.IGNORECASE), rf"\1{HIDDEN}"),
    (re.compile(r"(\bsshpass\s+-p\s*)[^\s\"']+"), rf"\1{HIDDEN}"),
    (re.compile(r"((?:\s|^)(?:-u\s+|--user[ =]))[^\s\"':]+:[^\s\"']+"), rf"\1{HIDDEN}"),
    (re.compile(r"(\bwandb\b[^\n]{0,60}?)\b[0-9a-f]{40}\b", re.IGNORECASE), rf"\1{HIDDEN}"),
    # 40 characters of base64 in all cases: the form of an AWS secret key. A hash in hex has one case.
    (re.compile(r"(?<![\w/+=.-])(?=[^\s]*[a-z])(?=[^\s]*[A-Z])(?=[^\s]*\d)[A-Za-z0-9/+]{40}(?![\w/+=.-])"), HIDDEN),
)


class Redactor:
    """Removes secrets, and counts them.

    Args:
        environment: whose secret variables' values are removed wherever they stand.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        values = {value for name, value in environment.items() if is_secret(name, value) and len(value) >= 6}
        self._values = sorted((v for v in values if not _NUMBER.fullmatch(v)), key=len, reverse=True)
        self.count = 0

    def text(self, text: str) -> str:
        """Text with `***` in the place of what looks like a secret."""
        for value in self._values:
            self.count += text.count(value)
            text = text.replace(value, HIDDEN)
        for pattern in (_PRIVATE_KEY, _END_OF_KEY):
            text = self._replace(pattern, HIDDEN, text)
        for pattern in _BY_NAME:
            text = pattern.sub(self._hide_value, text)
        for pattern, by in _FORMS:
            text = self._replace(pattern, by, text)
        return text

    def record(self, value: Any, *, under: str = "") -> Any:
        """JSON's or YAML's types, the same way. What stands below a secret name goes, and all values of a mapping
        `env`; numbers and booleans stay unless the name is of a password or the like. `under`: which of both it is."""
        if isinstance(value, Mapping):
            return {
                self.text(str(key)): self.record(one, under=under or self._kind(str(key))) for key, one in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.record(one, under=under) for one in value]
        stays = (
            value in (None, "", HIDDEN)
            or isinstance(value, bool)
            or (under == "weak" and _NUMBER.fullmatch(str(value)))
        )
        if under and not stays:
            self.count += 1
            return HIDDEN
        return self.text(value) if isinstance(value, str) else value

    def _kind(self, key: str) -> str:
        if _STRONG_NAME.search(key) or key.lower() in _ENVIRONMENTS:
            return "strong"
        return "weak" if _WEAK_NAME.search(key) or (key.isupper() and is_secret(key)) else ""

    def _replace(self, pattern: re.Pattern[str], by: str, text: str) -> str:
        text, found = pattern.subn(by, text)
        self.count += found
        return text

    def _hide_value(self, match: re.Match[str]) -> str:
        value = match["value"]
        plain = value.strip("\"'\\ ")
        is_weak = not _STRONG_NAME.search(match["name"])
        if plain in ("", HIDDEN) or (is_weak and _NUMBER.fullmatch(plain)):
            return match[0]
        self.count += 1
        ends = [quote for quote in ('\\"', '"', "'") if value.startswith(quote)]
        return f"{match['name']}{ends[0] + HIDDEN + ends[0] if ends else HIDDEN}"
