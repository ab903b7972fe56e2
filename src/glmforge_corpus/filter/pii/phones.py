"""Rules for telephone numbers, which have no check digit: something else must say what they are.

That is a "+" and an assigned country code; the American grouping; the Chinese mobile range, grouped or beside Chinese
text; or a word such as "Tel." right before. Numbers kept free for examples (555-0100 to 555-0199) stay.
"""

import re

from glmforge_corpus.filter.pii.rule import LEAD, Rule, Window, digits_of
from glmforge_corpus.filter.pii.scan import BEHIND_NAME, BEHIND_PLUS, GROUPED


def _international(window: Window, match: re.Match[bytes]) -> tuple[int, int] | None:
    digits = digits_of(match)
    code = country_code(digits)
    separators = len(match[0]) - len(digits) - 1
    if code is None or (separators == 0 and len(digits) < 9) or (b"." in match[0] and len(digits) < 10):
        return None
    if code != "1":
        return match.span()
    national = _NORTH_AMERICAN.match(match[0])
    area = digits[1:4]
    if national is None or area[0] in "01" or digits[4] in "01" or _is_fictional(digits[1:11]):
        return None
    following = match[0][national.end() : national.end() + 1]
    return None if following.isdigit() else (match.start(), match.start() + national.end())


def country_code(digits: str) -> str | None:
    """The country code with which an international number begins, or None if it is not assigned."""
    match = _COUNTRY_CODE.match(digits)
    return match[0] if match else None


def _north_american(window: Window, match: re.Match[bytes]) -> re.Match[bytes] | None:
    digits = digits_of(match)[-10:]
    return None if digits[1:3] == "11" or digits[4:6] == "11" or _is_fictional(digits) else match


def _is_fictional(national: str) -> bool:
    """555-0100 to 555-0199 are kept free for examples."""
    return national[3:8] == "55501"


def _chinese_mobile(window: Window, match: re.Match[bytes]) -> re.Match[bytes] | None:
    before = window.data[max(0, match.start() - LEAD) : match.start()]
    if match[1] or _TELEPHONE.search(before):
        return match
    chinese = any(0xE3 <= byte <= 0xE9 for byte in before[-24:])
    behind = window.data[match.end() : match.end() + 12].decode(errors="ignore")
    counted = _COUNTED.match(behind) or _AMOUNT.search(before.decode(errors="ignore"))
    return match if chinese and not counted else None


_COUNTED = re.compile(
    r"[ \u3000]?(?:[元圆块角万亿千百个件次字吨米克条张台辆只股份行名位户笔套颗枚斤度秒年天多余％%]|公里|公斤|立方|平方|"
    r"人(?!的|是|在)|美|欧|英镑|日元|港|人民币)"
)
_AMOUNT = re.compile(
    r"(?:[共约近达超逾计￥¥$第等于价=＝×÷]|总[额数量]|[金数余][额量]|价格|(?:订单|编|单|序|流水|[账帐卡学工证批货]|合同|发票|"
    r"商品|条形?码|QQ|ID|id)[号码]?)[为是]?[ :：\u3000]{0,4}$"
)
"""What makes eleven digits in Chinese text an amount or another number: a measure word behind, such a word before."""


def _after_its_name(window: Window, match: re.Match[bytes]) -> re.Match[bytes] | None:
    """Any number right behind "Tel." and the like."""
    digits = digits_of(match)
    if not 7 <= len(digits) <= 15 or len(set(digits)) < 3 or _DATE.match(match[0]) or _EXAMPLE.search(match[0]):
        return None
    return match if match.start() in (window.start, window.start - 1) else None


_TELEPHONE = re.compile(
    (
        r"(?i)(?:(?<![a-z<])(?:tel|telephone|phone|mobile|fax|telefax|telefon|telefono|telefone|teléfono|téléphone|tél|"
        r"handy|whatsapp|тел|Тел|телефон|Телефон|факс|Факс)(?:\.|s|no|number|nr|fon)?|电话|手机|電話|手機|联系方式|传真|携帯|전화|휴대폰)"
        r"[^0-9A-Za-z\n]{0,12}$"
    ).encode()
)
_NORTH_AMERICAN = re.compile(rb"(?:\D*\d){11}")  # country code 1, and ten digits always
_DATE = re.compile(rb"(?:\d{4}([-./])\d\d\1\d\d|\d\d([-./])\d\d\2\d{4})(?!\d)")
_EXAMPLE = re.compile(rb"\b555[-. ]01\d\d$")
_COUNTRY_CODE = re.compile(
    r"1|7|2[07]|3[0-469]|4[013-9]|5[1-8]|6[0-6]|8[1246]|9[0-58]|2(?:1[1-368]|[2346]\d|5[0-8]|9[017-9])|3(?:5\d|7[0-8]|"
    r"8[0-35-79])|42[013]|50\d|59\d|67[02-9]|68[0-35-9]|69[0-2]|85[02356]|88[06]|96[0-8]|97[0-7]|99[2-68]"
)
"""Codes that ITU-T E.164 assigns to countries."""

_PHONE = "phone"

PHONE_RULES = (
    Rule(
        "international phone",
        _PHONE,
        7,
        BEHIND_PLUS,
        re.compile(rb"(?<![\w+=/*^@.-])\+[1-9](?:(?:[ .\-/()]{0,2}|\(0\))\d){6,14}(?!\w|[.,]\d)"),
        _international,
    ),
    Rule(
        "american phone",
        _PHONE,
        10,
        GROUPED,
        re.compile(rb"(?<![\w.+/=-])(?:1[-. ])?(?:\([2-9]\d\d\) ?|[2-9]\d\d([-.]))[2-9]\d\d[-. ]\d{4}(?!\w|[-.]\d)"),
        _north_american,
    ),
    Rule(
        "chinese mobile",
        _PHONE,
        11,
        0,
        re.compile(rb"(?<![\w.+/-])(?<!\d )(?:86[ -])?1[3-9]\d([ -]?)\d{4}\1\d{4}(?!\w|[-. ]\d)"),
        _chinese_mobile,
    ),
    Rule(
        "phone after its name",
        _PHONE,
        7,
        BEHIND_NAME,
        re.compile(rb"(?<![\w.+])[(+]?\d(?:[ .\-/()]{0,2}\d){6,14}(?!\w)"),
        _after_its_name,
        _TELEPHONE,
        behind=True,
    ),
)
