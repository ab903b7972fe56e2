"""Check digits of cards, accounts and identity numbers: what makes a number more than a number.

All take the number without separators, as ASCII; the source of each rule is named with it.
"""

import calendar

IBAN_LENGTHS = {
    "AD": 24, "AE": 23, "AL": 28, "AT": 20, "AZ": 28, "BA": 20, "BE": 16, "BG": 22, "BH": 22, "BI": 27, "BR": 29,
    "BY": 28, "CH": 21, "CR": 22, "CY": 28, "CZ": 24, "DE": 22, "DJ": 27, "DK": 18, "DO": 28, "EE": 20, "EG": 29,
    "ES": 24, "FI": 18, "FK": 18, "FO": 18, "FR": 27, "GB": 22, "GE": 22, "GI": 23, "GL": 18, "GR": 27, "GT": 28,
    "HN": 28, "HR": 21, "HU": 28, "IE": 22, "IL": 23, "IQ": 23, "IS": 26, "IT": 27, "JO": 30, "KW": 30, "KZ": 20,
    "LB": 28, "LC": 32, "LI": 21, "LT": 20, "LU": 20, "LV": 21, "LY": 25, "MC": 27, "MD": 24, "ME": 22, "MK": 19,
    "MN": 20, "MR": 27, "MT": 31, "MU": 30, "NI": 28, "NL": 18, "NO": 15, "OM": 23, "PK": 24, "PL": 28, "PS": 29,
    "PT": 25, "QA": 29, "RO": 24, "RS": 22, "RU": 33, "SA": 24, "SC": 31, "SD": 18, "SE": 24, "SI": 19, "SK": 24,
    "SM": 27, "SO": 23, "ST": 25, "SV": 28, "TL": 23, "TN": 24, "TR": 26, "UA": 29, "VA": 22, "VG": 24, "XK": 20,
    "YE": 30,
}  # fmt: skip
"""Characters of an IBAN by country: SWIFT's IBAN registry."""

_CHINESE_PROVINCES = frozenset({
    11, 12, 13, 14, 15, 21, 22, 23, 31, 32, 33, 34, 35, 36, 37, 41, 42, 43, 44, 45, 46, 50, 51, 52, 53, 54,
    61, 62, 63, 64, 65, 71, 81, 82, 83,
})  # fmt: skip

_VERHOEFF_TURN = ((0, 1, 2, 3, 4, 5, 6, 7, 8, 9), (1, 5, 7, 6, 2, 8, 3, 0, 9, 4))
_DNI_LETTERS = "TRWAGMYFPDXBNJZSQVHLCKE"
_FISCAL_ODD = (1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23)


def luhn(digits: str) -> bool:
    """ISO/IEC 7812-1, annex B."""
    doubled = (int(digit) * 2 for digit in digits[-2::-2])
    return (sum(map(int, digits[-1::-2])) + sum(value - 9 if value > 9 else value for value in doubled)) % 10 == 0


def is_card(digits: str) -> bool:
    """Luhn, and the length and first digits of a network: Visa, Mastercard, American Express, Discover, JCB,
    Diners Club, UnionPay, Mir."""
    first, size = int(digits[:6]), len(digits)
    lengths: tuple[int, ...] = ()
    if digits[0] == "4":
        lengths = (13, 16, 19)
    elif 51 <= first // 10000 <= 55 or 222100 <= first <= 272099 or 2200 <= first // 100 <= 2204:
        lengths = (16,)
    elif first // 10000 in (34, 37):
        lengths = (15,)
    elif first // 100 == 6011 or 644 <= first // 1000 <= 649 or first // 10000 in (62, 65):
        lengths = (16, 17, 18, 19)
    elif 3528 <= first // 100 <= 3589:
        lengths = (16,)
    elif 300 <= first // 1000 <= 305 or first // 10000 in (36, 38, 39):
        lengths = (14,)
    return size in lengths and luhn(digits)


def is_iban(iban: str) -> bool:
    """ISO 13616: length by country and remainder 1 modulo 97."""
    if IBAN_LENGTHS.get(iban[:2]) != len(iban) or not iban.isalnum():
        return False
    return int("".join(str(int(character, 36)) for character in iban[4:] + iban[:4])) % 97 == 1


def is_us_ssn(digits: str) -> bool:
    """Ranges that the Social Security Administration never issues: area 000, 666, 9xx, group 00, serial 0000; and
    two numbers that stood in advertisements."""
    area, group, serial = digits[:3], digits[3:5], digits[5:]
    issued = area not in ("000", "666") and area[0] != "9" and group != "00" and serial != "0000"
    return issued and digits not in ("078051120", "219099999")


def is_chinese_id(number: str) -> bool:
    """GB 11643-1999: province, date of birth, check character by ISO 7064 MOD 11-2."""
    if int(number[:2]) not in _CHINESE_PROVINCES or not is_date(number[6:10], number[10:12], number[12:14]):
        return False
    remainder = sum(int(digit) << (17 - place) for place, digit in enumerate(number[:17])) % 11
    return "10X98765432"[remainder] == number[17].upper()


def is_date(year: str, month: str, day: str) -> bool:
    """A day between 1900 and 2099."""
    y, m, d = int(year), int(month), int(day)
    return 1900 <= y <= 2099 and 1 <= m <= 12 and 1 <= d <= calendar.monthrange(y, m)[1]


def is_german_tax_id(digits: str) -> bool:
    """Section 139b AO: of the first ten digits one is there twice or three times; ISO 7064 MOD 11,10."""
    repeated = sorted(digits[:10].count(digit) for digit in set(digits[:10]))
    if digits[0] == "0" or repeated[-1] not in (2, 3) or (len(repeated) > 1 and repeated[-2] > 1):
        return False
    product = 10
    for digit in digits[:10]:
        total = (int(digit) + product) % 10 or 10
        product = total * 2 % 11
    return (11 - product) % 10 == int(digits[10])


def is_french_nir(number: str) -> bool:
    """INSEE: 13 places and a key of two, 97 minus the remainder modulo 97; Corsica's departments are 2A and 2B."""
    body = number[:13].replace("2A", "19").replace("2B", "18")
    return body.isdigit() and 97 - int(body) % 97 == int(number[13:])


def is_spanish_dni(number: str) -> bool:
    """DNI and NIE: a letter by the remainder modulo 23; X, Y, Z stand for 0, 1, 2."""
    digits = str("XYZ".find(number[0])) + number[1:-1] if number[0] in "XYZ" else number[:-1]
    return digits.strip("0") != "" and _DNI_LETTERS[int(digits) % 23] == number[-1]


def is_british_ni(number: str) -> bool:
    """HMRC's prefixes that are not allotted; there is no check digit."""
    return number[:2] not in ("BG", "GB", "KN", "NK", "NT", "TN", "ZZ")


def is_italian_fiscal_code(code: str) -> bool:
    """D.M. 23 December 1976: values of odd and even places modulo 26."""
    values = [int(character) if character.isdigit() else ord(character) - ord("A") for character in code[:15]]
    total = sum(_FISCAL_ODD[value] if place % 2 == 0 else value for place, value in enumerate(values))
    return chr(ord("A") + total % 26) == code[15]


def is_brazilian_cpf(digits: str) -> bool:
    """Two check digits modulo 11."""
    if len(set(digits)) == 1:
        return False
    for size in (9, 10):
        total = sum(int(digit) * weight for digit, weight in zip(digits, range(size + 1, 1, -1), strict=False))
        if total * 10 % 11 % 10 != int(digits[size]):
            return False
    return True


def is_korean_rrn(digits: str) -> bool:
    """Date of birth with century, and a check digit modulo 11 (numbers given out since October 2020 have none)."""
    century = {"1": "19", "2": "19", "3": "20", "4": "20", "5": "19", "6": "19", "7": "20", "8": "20"}.get(digits[6])
    if century is None or not is_date(century + digits[:2], digits[2:4], digits[4:6]):
        return False
    total = sum(
        int(digit) * weight for digit, weight in zip(digits, (2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4, 5), strict=False)
    )
    return (11 - total % 11) % 10 == int(digits[12])


def is_aadhaar(digits: str) -> bool:
    """UIDAI: Verhoeff's scheme over twelve digits."""
    check = 0
    for place, digit in enumerate(reversed(digits)):
        turned = int(digit)
        for _ in range(place % 8):
            turned = _VERHOEFF_TURN[1][turned]
        check = _dihedral(check, turned)
    return check == 0


def _dihedral(a: int, b: int) -> int:
    """Product in the dihedral group of order ten."""
    if a < 5:
        return (a + b) % 5 if b < 5 else 5 + (a + b) % 5
    return 5 + (a - b) % 5 if b < 5 else (a - b) % 5


def is_dutch_bsn(digits: str) -> bool:
    """The "elfproef", a weighted sum modulo 11."""
    weights = (9, 8, 7, 6, 5, 4, 3, 2, -1)
    return digits.strip("0") != "" and sum(int(d) * w for d, w in zip(digits, weights, strict=True)) % 11 == 0


def is_polish_pesel(digits: str) -> bool:
    """A weighted sum modulo 10."""
    weights = (1, 3, 7, 9, 1, 3, 7, 9, 1, 3, 1)
    return 1 <= int(digits[2:4]) % 20 <= 12 and sum(int(d) * w for d, w in zip(digits, weights, strict=True)) % 10 == 0
