"""Rules for numbers: cards, accounts and identity numbers, each a shape and a check.

A rule sees the bytes around a run of digits (`window`) and where in it the run stands. What the check of a rule lets
through by chance decides what it asks for:

* a check of 97 or a birthday inside the number (IBAN, French, Chinese, Korean, Italian, Brazilian numbers) needs
  nothing else; so does a shape that hardly anything else has (US social security, a Spanish number with its letter);
* a check of ten on plain digits (German, Dutch, Polish, Indian, Canadian numbers) also needs a word that names it
  nearby, for one in ten article numbers would pass;
* telephones have rules of their own (`phones.py`).

Sources of the checks stand in `checksums.py`.
"""

import re
from functools import cache

from glmforge_corpus.filter.pii import checksums as checks
from glmforge_corpus.filter.pii.phones import PHONE_RULES
from glmforge_corpus.filter.pii.rule import Rule, Window, compact, digits_of, on_compact, on_digits, words
from glmforge_corpus.filter.pii.scan import BEFORE_CAPITAL, BEHIND_CAPITAL, GROUPED, LONG


def _iban(window: Window, match: re.Match[bytes]) -> tuple[int, int] | None:
    """The shape takes what follows, too; the country says where the number ends."""
    length = checks.IBAN_LENGTHS.get(match[0][:2].decode().upper())
    if length is None:
        return None
    iban, end = bytearray(), match.start()
    for byte in match[0]:
        end += 1
        if byte not in b" -":
            iban.append(byte)
        if len(iban) == length:
            break
    follows = window.data[end : end + 1]
    whole = len(iban) == length and not follows.isalnum()
    if iban.islower() and sum(byte <= 57 for byte in iban) < _MIN_DIGITS_OF_SMALL_IBAN * len(iban):
        return None
    return (match.start(), end) if whole and checks.is_iban(iban.decode().upper()) else None


_MIN_DIGITS_OF_SMALL_IBAN = 0.6
"""In small letters: hexadecimal numbers and the like have fewer, and one in 97 passes the check."""


def _us_ssn(window: Window, match: re.Match[bytes]) -> re.Match[bytes] | None:
    plain = match[1] == b" "
    return match if (not plain or window.mentions(_SSN_NAMES, match)) and checks.is_us_ssn(digits_of(match)) else None


def _british_ni(window: Window, match: re.Match[bytes]) -> re.Match[bytes] | None:
    spaced = match[2] == b" "
    return match if checks.is_british_ni(compact(match)) and (spaced or window.mentions(_NI_NAMES, match)) else None


_SSN_NAMES = words("ssn", "social security")
_NI_NAMES = words("ni number", "nino", "national insurance", "ni no")
_TAX_NAMES = words("steuer[a-z-]*", "id-?nr", "tin", "tax id")
_AADHAAR_NAMES = words("aadhaar", "aadhar", "uid", "uidai")
_BSN_NAMES = words("bsn", "burgerservicenummer", "sofinummer", "sofi")
_PESEL_NAMES = words("pesel")
_SIN_NAMES = words("sin", "social insurance", "numéro d'assurance sociale")

_NATIONAL = "national_id"

RULES = (
    Rule("iban", "iban", 7, BEHIND_CAPITAL, re.compile(rb"(?i)(?<![\w-])[A-Z]{2}\d\d(?:[ -]?[A-Z0-9]){11,29}"), _iban),
    Rule(
        "card",
        "card",
        13,
        0,
        re.compile(
            rb"(?<![\w.,-])(?<!\d{4} )(?:\d{4}([ -])\d{4}\1\d{4}\1\d{1,7}|\d{4}([ -])\d{6}\2\d{4,5}|\d{13,19})"
            rb"(?!\w|[-.,]\d| \d{4}(?!\d))"  # not four columns of a table of such numbers
        ),
        on_digits(checks.is_card),
    ),
    Rule(
        "chinese id", _NATIONAL, 17, LONG, re.compile(rb"(?<!\w)\d{17}[\dXx](?!\w)"), on_compact(checks.is_chinese_id)
    ),
    Rule(
        "french nir",
        _NATIONAL,
        15,
        0,
        re.compile(rb"(?<![\w.-])[1-478]( ?)\d\d\1(?:0[1-9]|1[0-2]|[2-9]\d)\1\d\d\1\d{3}\1\d{3}\1\d\d(?!\w)"),
        on_compact(checks.is_french_nir),
    ),
    Rule(
        "french nir of Corsica",
        _NATIONAL,
        7,
        BEHIND_CAPITAL,
        re.compile(rb"(?<![\w.-])[1-478]( ?)\d\d\1(?:0[1-9]|1[0-2]|[2-9]\d)\1(?:2[AB])\1\d{3}\1\d{3}\1\d\d(?!\w)"),
        on_compact(checks.is_french_nir),
    ),
    Rule(
        "italian fiscal code",
        _NATIONAL,
        2,
        BEHIND_CAPITAL,
        re.compile(rb"(?<!\w)[A-Z]{6}\d\d[A-EHLMPRST]\d\d[A-Z]\d{3}[A-Z](?!\w)"),
        on_compact(checks.is_italian_fiscal_code),
    ),
    Rule(
        "brazilian cpf",
        _NATIONAL,
        11,
        GROUPED,
        re.compile(rb"(?<![\w.-])\d{3}\.\d{3}\.\d{3}-\d\d(?!\w)"),
        on_digits(checks.is_brazilian_cpf),
    ),
    Rule(
        "korean rrn",
        _NATIONAL,
        13,
        GROUPED,
        re.compile(rb"(?<![\w-])\d{6}-[1-8]\d{6}(?![\w-])"),
        on_digits(checks.is_korean_rrn),
    ),
    Rule(
        "us ssn",
        _NATIONAL,
        9,
        0,
        re.compile(rb"(?<![\w.-])\d{3}([- ])\d\d\1\d{4}(?![\w]|[-.]\d)"),
        _us_ssn,
    ),
    Rule(
        "spanish dni",
        _NATIONAL,
        7,
        BEFORE_CAPITAL,
        re.compile(rb"(?<![\w.-])(?:\d{8}|[XYZ]-?\d{7})-?[A-Z](?!\w)"),
        on_compact(checks.is_spanish_dni),
    ),
    Rule(
        "british ni number",
        _NATIONAL,
        6,
        BEHIND_CAPITAL,
        re.compile(rb"(?<!\w)([A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z])( ?)\d\d\2\d\d\2\d\d\2[A-D](?!\w)"),
        _british_ni,
    ),
    Rule(
        "german tax id",
        _NATIONAL,
        11,
        0,
        re.compile(rb"(?<![\w.-])[1-9]\d( ?)\d{3}\1\d{3}\1\d{3}(?!\w)"),
        on_digits(checks.is_german_tax_id),
        _TAX_NAMES,
    ),
    Rule(
        "aadhaar",
        _NATIONAL,
        12,
        0,
        re.compile(rb"(?<![\w.-])[2-9]\d{3}([ -]?)\d{4}\1\d{4}(?!\w)"),
        on_digits(checks.is_aadhaar),
        _AADHAAR_NAMES,
    ),
    Rule(
        "polish pesel",
        _NATIONAL,
        11,
        LONG,
        re.compile(rb"(?<![\w.-])\d{11}(?!\w)"),
        on_digits(checks.is_polish_pesel),
        _PESEL_NAMES,
    ),
    Rule(
        "dutch bsn",
        _NATIONAL,
        9,
        LONG,
        re.compile(rb"(?<![\w.-])\d{9}(?!\w)"),
        on_digits(checks.is_dutch_bsn),
        _BSN_NAMES,
    ),
    Rule(
        "canadian sin",
        _NATIONAL,
        9,
        0,
        re.compile(rb"(?<![\w.-])\d{3}([ -]?)\d{3}\1\d{3}(?!\w)"),
        on_digits(checks.luhn),
        _SIN_NAMES,
    ),
    *PHONE_RULES,
)
"""In order of precedence: of spans that overlap, the earlier rule's stands."""


@cache
def rules_for(digits: int, hints: int) -> tuple[Rule, ...]:
    """The rules that a run of this many digits with these hints may meet."""
    return tuple(rule for rule in RULES if digits >= rule.digits and (rule.hints == 0 or hints & rule.hints))
