"""Personal data: a planted set from generators of our own, what must stay, and the block's bookkeeping."""

import itertools
import random
import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from glmforge_corpus.filter.pii import checksums as checks
from glmforge_corpus.filter.pii.block import CONSTANTS, KINDS, PII, find_personal_data
from helpers.corpus import batch_of

LETTERS, DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789"


def masked(text: str, **options: object) -> str:
    return PII(**options).process(batch_of([text])).batch.texts[0]


def digits(dice: random.Random, count: int) -> str:
    return "".join(dice.choice(DIGITS) for _ in range(count))


def with_luhn(body: str) -> str:
    """The body and the digit that makes it a card number, by trying."""
    for last in DIGITS:
        total = 0
        for place, digit in enumerate(reversed(body + last)):
            value = int(digit) * (1 + place % 2)
            total += value // 10 + value % 10
        if total % 10 == 0:
            return body + last
    raise AssertionError


def card(dice: random.Random) -> str:
    prefix, size = dice.choice(
        [("4", 16), ("51", 16), ("2221", 16), ("37", 15), ("6011", 16), ("3530", 16), ("62", 16)]
    )
    number = with_luhn(prefix + digits(dice, size - 1 - len(prefix)))
    separator = dice.choice(["", " ", "-"])
    cuts = (4, 10) if size == 15 else (4, 8, 12)
    return separator.join(number[a:b] for a, b in zip((0, *cuts), (*cuts, size), strict=True))


def iban(dice: random.Random) -> str:
    country, bank = dice.choice(
        [("DE", digits(dice, 18)), ("GB", "NWBK" + digits(dice, 14)), ("FR", digits(dice, 10) + "N" + digits(dice, 12)),
         ("NO", digits(dice, 11)), ("MT", "MALT" + digits(dice, 23)), ("ES", digits(dice, 20)),
         ("NL", "ABNA" + digits(dice, 10))]
    )  # fmt: skip
    number = int("".join(str(int(c, 36)) for c in bank + country + "00"))
    compact = f"{country}{98 - number % 97:02d}{bank}"
    return compact if dice.random() < 0.5 else " ".join(compact[i : i + 4] for i in range(0, len(compact), 4))


def email(dice: random.Random) -> str:
    name = dice.choice(["anna.schmidt", "j_doe77", "li-wei", "mary+lists", "o'brien", "x"])
    return (
        f"{name}@{dice.choice(['uni-koeln.de', 'gmail.com', 'mail.corp.co.uk', 'posteo.net', '163.com', 'x.museum'])}"
    )


def phone(dice: random.Random) -> str:
    first = dice.choice("23456789")
    return dice.choice(
        [
            f"+49 {first}0 {digits(dice, 8)}",
            f"+1 (2{digits(dice, 1)}2) {first}23-{digits(dice, 4)}",
            f"(2{digits(dice, 1)}5) 67{first}-{digits(dice, 4)}",
            f"3{digits(dice, 1)}2-67{first}-{digits(dice, 4)}",
            f"+86 138 {digits(dice, 4)} {digits(dice, 4)}",
            f"138-{digits(dice, 4)}-{digits(dice, 4)}",
            f"+33 {first} {digits(dice, 2)} {digits(dice, 2)} {digits(dice, 2)} {digits(dice, 2)}",
            f"+44 (0)20 7{digits(dice, 3)} {digits(dice, 4)}",
            f"+81-3-{digits(dice, 4)}-{digits(dice, 4)}",
        ]
    )


def public_ip(dice: random.Random) -> str:
    if dice.random() < 0.3:
        return f"2a02:{dice.randrange(1, 0xFFFF):x}:{dice.randrange(1, 0xFFFF):x}::{dice.randrange(1, 0xFFFF):x}"
    return f"{dice.choice([52, 81, 93, 146, 212])}.{dice.randrange(256)}.{dice.randrange(256)}.{dice.randrange(1, 255)}"


def mac(dice: random.Random) -> str:
    return ":".join(["3c", *(f"{dice.randrange(256):02x}" for _ in range(5))])


def us_ssn(dice: random.Random) -> str:
    return f"{dice.randrange(100, 665)}-{dice.randrange(1, 100):02d}-{dice.randrange(1, 10000):04d}"


def chinese_id(dice: random.Random) -> str:
    body = f"{dice.choice(['110105', '440304', '320106'])}{dice.randrange(1930, 2015)}{dice.randrange(1, 13):02d}"
    body += f"{dice.randrange(1, 29):02d}{digits(dice, 3)}"
    weights = [7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2]
    return body + "10X98765432"[sum(int(d) * w for d, w in zip(body, weights, strict=True)) % 11]


def french_nir(dice: random.Random) -> str:
    parts = [dice.choice("12"), digits(dice, 2), f"{dice.randrange(1, 13):02d}", dice.choice(["75", "13", "2A", "2B"])]
    parts += [f"{dice.randrange(1, 999):03d}", f"{dice.randrange(1, 999):03d}"]
    value = "".join(parts).replace("2A", "19").replace("2B", "18")
    parts.append(f"{97 - int(value) % 97:02d}")
    return dice.choice(["", " "]).join(parts)


def spanish_dni(dice: random.Random) -> str:
    number = digits(dice, 8)
    return number + "TRWAGMYFPDXBNJZSQVHLCKE"[int(number) % 23]


def brazilian_cpf(dice: random.Random) -> str:
    number = digits(dice, 9)
    for size in (10, 11):
        rest = sum(int(d) * (size - i) for i, d in enumerate(number)) % 11
        number += str(0 if rest < 2 else 11 - rest)
    return f"{number[:3]}.{number[3:6]}.{number[6:9]}-{number[9:]}"


def german_tax_id(dice: random.Random) -> str:
    places = dice.sample("123456789", 9)
    places.insert(dice.randrange(1, 9), places[0])
    product = 10
    for digit in places:
        product = ((int(digit) + product) % 10 or 10) * 2 % 11
    return "Steuer-IdNr. " + "".join(places) + str((11 - product) % 10)


def korean_rrn(dice: random.Random) -> str:
    born = f"{dice.randrange(50, 99)}{dice.randrange(1, 13):02d}{dice.randrange(1, 29):02d}"
    body = born + dice.choice("12") + digits(dice, 5)
    last = (11 - sum(int(d) * w for d, w in zip(body, [2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4, 5], strict=True)) % 11) % 10
    return f"{body[:6]}-{body[6:]}{last}"


def secret(dice: random.Random) -> str:
    alphabet = LETTERS + LETTERS.lower() + DIGITS

    def token(size: int) -> str:
        return (
            "".join(dice.sample(alphabet, size)) if size < 50 else "".join(dice.choice(alphabet) for _ in range(size))
        )

    return dice.choice(
        [
            "AKIA" + "".join(dice.sample(LETTERS[2:] + "234567", 16)),
            "ghp_" + token(36),
            "xoxb-" + "1234567890-" + token(24),
            "glpat-" + token(20),
            "eyJ" + token(20) + ".eyJ" + token(40) + "." + token(43),
            "-----BEGIN RSA PRIVATE KEY-----\n" + token(64) + "\n" + token(64) + "\n-----END RSA PRIVATE KEY-----",
        ]
    )


NATIONAL = (us_ssn, chinese_id, french_nir, spanish_dni, brazilian_cpf, german_tax_id, korean_rrn)
GENERATORS: dict[str, tuple[Callable[[random.Random], str], ...]] = {
    "card": (card,), "iban": (iban,), "email": (email,), "phone": (phone,), "ip": (public_ip,), "mac": (mac,),
    "national_id": NATIONAL, "secret": (secret,),
}  # fmt: skip
FRAMES = ("My data: {}, thanks.", "({})", "see {} and more", "{}", "联系方式是 {}。", "a\n{}\nb", "Größe: {}; x")


@pytest.mark.parametrize("kind", GENERATORS)
def test_what_is_planted_is_found_exactly(kind: str) -> None:
    dice = random.Random(kind)
    planted, texts, expected = [], [], []
    for number in range(300):
        generators = GENERATORS[kind]
        item = generators[number % len(generators)](dice)
        frame = dice.choice(FRAMES)
        planted.append(item)
        texts.append(frame.format(item))
        expected.append(frame.format(("Steuer-IdNr. " if item.startswith("Steuer") else "") + f"<{kind}>"))
    found = PII().process(batch_of(texts)).batch.texts
    missed = [(text, result) for text, result, want in zip(texts, found, expected, strict=True) if result != want]
    # French numbers that have no month or key of the right form, and 555-01xx, cannot come out of the generators.
    assert not missed, missed[:5]


HARMLESS = [
    "Write to user@example.com, a@b.example.org, test@localhost or root@host.local.",
    "git clone git@github.com:a/b.git; icon@2x.png; getty@tty1.service; @media; a @ b.com; x@1.2.3",
    "Version 14.2.3.1 and v21.0.0.7, package-12.3.4.5.tar.gz, Chrome/90.12.44.21, 1.2.3.4",
    "hosts 127.0.0.1 10.0.0.7 192.168.1.1 172.16.5.5 0.0.0.0 255.255.255.0 203.0.113.7 224.0.0.1 169.254.3.3",
    "11.3.2.4. Installing the boot loader\n12.1.1.3 Partitions",
    "300.1.2.3 and 12.34.56.789 and 012.034.056.078 and 52.12.14.15.16",
    "::1 fe80::1 2001:db8::17 2002:: std::vector 12:30:45 10:20:30 a::b 2020::",
    "ff:ff:ff:ff:ff:ff 00:00:00:00:00:00 00:11:22:33:44:55 01:00:5e:00:00:fb 00:00:5e:00:53:01",
    "de:ad:be:ef:00:11:22:33 is eight pairs; fingerprint 3c:07:54:2a:11:99:aa:bb:cc:dd:ee:ff:01:02:03:04",
    "1234567890123456 4111111111111112 0.4111111111111111 4111-1111-1111-11112 id4111111111111111",
    "DE89370400440532013001 XX89370400440532013000 DE8937040044053201300",
    "000-12-3456 666-12-3456 912-12-3456 123-00-4567 123-45-0000 078-05-1120 123-45-67890 1-123-45-6789",
    "11010519491231002Y 110105194912310021 990105194912310026 110105194913310028",
    "ISBN 978-3-16-148410-0, 2024-11-21 12:30, 21.11.2026, 1999-2004, 3.14159265358979, 1/2/2003",
    "+1 202 555 0142, 202-555-0199, +999 12345678901, x+491234567890, 1+123456789",
    "12345678901 1234567 20260101 15.000.000 8 bytes 0xdeadbeef 2147483647 18446744073709551615",
    "AKIAIOSFODNN7EXAMPLE ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx AKIAAAAAAAAAAAAAAAAA sk_live_your",
    "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
    "-----BEGIN RSA PRIVATE KEY-----\n(private key here)\n-----END RSA PRIVATE KEY-----",
    "@@ -123456,78 +1234567,89 @@ commit 6b9d2c1f0a4e8d7c5b3a29181706f5e4d3c2b1a0",
    "12345678A 123456782 111.111.111-11 123.456.789-00 AB123456C GB123456A",
    "scores = q@k.transpose(-2, -1); inverse = A@np.linalg.inv(B); y = x@w.to(device); z = h@w.data; q@k.mT; a@b.T",
    "OID 2.5.29.17; issuer 2.5.4.3 and host extension 1.3.6.1; snmpget -v2c host 1.3.6.1",
    "共13812345678元，收入13812345678.5元，约13812345678人，总数为13812345678，订单号：13812345678，其中13812345678次",
    '{"password": "Passwort", "token": "Zeichen"} password="password" pwd = "${PW}" passwd = os.environ["X"]',
    "password: at least 8 characters\nsecret = 'my_secret_name'\napi_key: your-api-key-123\n密码：请输入",
    "token = '<eos1>'; tokens = 'a b c 1 2 3 4 5 6 7 8'; sk-learn-1234567890123456 sk-abcdefghijklmnopqrst",
    "de89abcdef0123456789ab de89-not-an-iban and fr76 1234 5678 id-de89370400440532013000x",
    "12345678903 is an article, 123456782 a part, 1234 5678 9012 a code",
]


@pytest.mark.parametrize("text", HARMLESS)
def test_what_only_looks_like_it_stays(text: str) -> None:
    assert masked(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mailto:a.b@uni-bonn.de>", "mailto:<email>>"),
        ("邮箱foo@qq.com。电话13812345678", "邮箱<email>。电话<phone>"),
        ("'me@web.de', .you@web.de.", "'<email>', .<email>."),
        ("https://user:pw@host.org/", "https://user:<email>/"),
        ("from 8.8.8.8 port 22, ip 1.1.1.1", "from <ip> port 22, ip <ip>"),
        ("http://93.184.216.34:8080/x", "http://<ip>:8080/x"),
        ("93.184.216.34 - - [27/Nov/2020] GET", "<ip> - - [27/Nov/2020] GET"),
        ("[2606:2800:220:1:248:1893:25c8:1946]:443", "[<ip>]:443"),
        ("Tel.: 030 123456-78", "Tel.: <phone>"),
        ("Fax (030) 1234567", "Fax <phone>"),
        ("phone 2026-11-21", "phone 2026-11-21"),
        ("NI number AB123456C, AB 12 34 56 C", "NI number <national_id>, <national_id>"),
        ("SSN 123 45 6789", "SSN <national_id>"),
        ("PESEL 44051401359 BSN 111222333", "PESEL <national_id> BSN <national_id>"),
        ("Aadhaar 2341 2341 2346", "Aadhaar <national_id>"),
        ("SIN 046 454 286", "SIN <national_id>"),
        ("CF RSSMRA85T10A562S.", "CF <national_id>."),
        ("X1234567L", "<national_id>"),
        ("1 85 05 2A 006 084 12 is Corsican", "<national_id> is Corsican"),
        ("paid with 5 4111 1111 1111 1111 12/27", "paid with 5 <card> 12/27"),
        ("IBAN DE89 3704 0044 0532 0130 00 BIC", "IBAN <iban> BIC"),
        ("de89370400440532013000, de89 3704 0044 0532 0130 00", "<iban>, <iban>"),
        ("DE89-3704-0044-0532-0130-00; gb82west12345698765432.", "<iban>; <iban>."),
        ("password = \"hunter2!\" and PASSWORD='S3cr3t!x'", "password = \"<secret>\" and PASSWORD='<secret>'"),
        ('"db_password": "correct-horse-battery",', '"db_password": "<secret>",'),
        (
            "export DB_PASSWORD=hunter2222\nAPI_KEY: abcd1234efgh # mine",
            "export DB_PASSWORD=<secret>\nAPI_KEY: <secret> # mine",
        ),
        ("postgres://bob:hunter2@db.corp.com/x", "postgres://bob:<secret>@db.corp.com/x"),
        ("Authorization: Bearer abcdef0123456789ABC", "Authorization: Bearer <secret>"),
        ("密码：Abc12345。", "密码：<secret>。"),
        ("ghp_abcDEF1234567890abcd sk-abcDEF1234567890abcd", "<secret> <secret>"),
        ("sk-ant-api03-abcDEF1234567890, AIzaSyabcDEF1234567890abcdefghijkl", "<secret>, <secret>"),
        ("resolver 1.1.1.1 and from 2.16.4.5", "resolver <ip> and from <ip>"),
        ("联系我 13812345678，或共13812345678元", "联系我 <phone>，或共13812345678元"),
        ("anna@uni-bonn.de(work), ZHANG@163.COM", "<email>(work), <email>"),
    ],
)
def test_by_example(text: str, expected: str) -> None:
    if "Corsican" in text:  # the key by its definition
        key = 97 - int("1850519006084") % 97
        text = text.replace("084 12", f"084 {key:02d}")
    assert masked(text) == expected


@pytest.mark.parametrize(
    ("check", "valid", "length"),
    [
        (checks.is_german_tax_id, "86095742719", 11),
        (checks.is_chinese_id, "11010519491231002X", 17),
        (checks.is_french_nir, "255081416802538", 15),
        (checks.is_italian_fiscal_code, "RSSMRA85T10A562S", 0),
        (checks.is_brazilian_cpf, "11144477735", 11),
        (checks.is_aadhaar, "234123412346", 12),
        (checks.is_polish_pesel, "44051401359", 11),
        (checks.is_dutch_bsn, "111222333", 9),
        (checks.is_iban, "GB82WEST12345698765432", 0),
        (checks.luhn, "79927398713", 11),
        (checks.is_spanish_dni, "12345678Z", 8),
    ],
)
def test_published_numbers_pass_and_changed_ones_fail(check: Callable[[str], bool], valid: str, length: int) -> None:
    assert check(valid)
    changed = [valid[:p] + d + valid[p + 1 :] for p in range(length) for d in DIGITS if d != valid[p]]
    # Every rule here but the German one, which also wants a repeated digit, detects all single changes of a digit.
    assert not [number for number in changed if check(number)]


def test_tokens_and_constants() -> None:
    text = "a.b@web.de or +49 30 12345678"
    assert masked(text, replacement="constant") == "email@example.com or 555-0100"
    assert masked(text, tokens={"email": "[E]"}) == "[E] or <phone>"
    assert masked(text, kinds=("phone",)) == "a.b@web.de or <phone>"
    with pytest.raises(ValidationError, match="printable"):
        PII(tokens={"email": "\n"})


@pytest.mark.parametrize("kind", KINDS)
def test_no_replacement_is_itself_masked(kind: str) -> None:
    for text in (CONSTANTS[kind], f"<{kind}>", f"Tel. {CONSTANTS[kind]} from <{kind}> 12345678 ip"):
        assert masked(text) == text


def test_counts_and_untouched_columns() -> None:
    batch = batch_of(["x@web.de y@web.de", "nothing", "52.1.2.3"])
    outcome = PII().process(batch)
    assert outcome.counts == {"pii: email": 2, "pii: ip": 1, "pii: documents": 2}
    assert outcome.batch.texts == ["<email> <email>", "nothing", "<ip>"]
    assert outcome.batch.ids == batch.ids
    assert PII().process(batch_of(["nothing"])).counts == {}


PIECES = st.sampled_from(
    ["a.b@web.de", "52.1.2.3", "4111 1111 1111 1111", "Tel. ", "555", "1", "-", ".", " ", "@", "x", "漢", "+49", "\n",
     "2a02::", "DE89370400440532013000", "hf_", ":", "123-45-6789", "AB", "eyJ"]
)  # fmt: skip


@settings(deadline=None)  # the first call compiles
@given(st.lists(st.lists(PIECES, max_size=12).map("".join), min_size=1, max_size=6))
def test_documents_are_judged_each_for_itself(texts: list[str]) -> None:
    batch = batch_of(texts)
    together = PII().process(batch).batch.texts
    assert together == [masked(text) for text in texts]
    part = batch.slice(1, len(batch))
    assert PII().process(part).batch.texts == together[1:]


def test_spans_stand_in_order_and_apart() -> None:
    dice = random.Random(7)
    text = " ".join(GENERATORS[kind][0](dice) for kind in GENERATORS for _ in range(20))
    batch = batch_of([text, text])
    spans = find_personal_data(batch.text_bytes, batch.text_offsets)
    assert all(first.stop <= second.start for first, second in itertools.pairwise(spans))
    half = len(text.encode())
    assert [(s.start - half, s.kind) for s in spans if s.row] == [(s.start, s.kind) for s in spans if not s.row]


def test_texts_full_of_marks_take_linear_time() -> None:
    """No assertion on time: what is quadratic does not end here."""
    for piece in (
        "1 ", "1", "@", "a@", "1.", "hf_", ".eyJ", "2a02:", "-----BEGIN ", "+1", "A1", "tel 1", "52.1.2.3 ",
        "123 45 6789 ", "password = '", "de89", "de89 ", "://a:", "secret: ",
    ):  # fmt: skip
        text = piece * (100_000 // len(piece))
        assert isinstance(masked(text), str)


def test_secrets_longer_than_a_window_are_masked_whole() -> None:
    body = "\n".join("MIIEpAIBAAKCAQEA0Z3VS5JJcds3xfn5ygWyF0ab/+0123456789abcdefGHIJKL" for _ in range(50))
    text = f"key:\n-----BEGIN PRIVATE KEY-----\n{body}\n-----END PRIVATE KEY-----\nend a@web.de"
    assert masked(text) == "key:\n<secret>\nend <email>"


def test_numbers_in_random_text_are_seldom_taken() -> None:
    """Tables of random numbers: a card needs Luhn and a network's prefix, an identity number more."""
    dice = np.random.default_rng(0)
    rows = [" ".join(str(n) for n in dice.integers(0, 10 ** dice.integers(1, 12), 12)) for _ in range(3000)]
    assert sum(PII().process(batch_of(rows)).counts.values()) <= 3
    assert not re.search(r"<", masked("\n".join(str(10**9 + n * 7919) for n in range(5000))))


def test_a_number_that_the_window_of_another_cuts_is_not_taken_for_a_shorter_one() -> None:
    """Of two runs close together, each is looked at with a piece of the other in view."""
    dice = random.Random(3)
    short = with_luhn("4" + digits(dice, 11))  # 13 digits: a card by itself
    longer = [short + tail for tail in ("123", "124", "125") if not checks.is_card(short + tail)]
    behind = ["99999999" + with_luhn("4" + digits(dice, 14)) for _ in range(3)]
    for gap in range(60):
        for number in (*longer, *behind):
            for other in ("1234567890123456", "7654321"):
                for text in (f"{other} {'x' * gap} {number}", f"{number} {'x' * gap} {other}"):
                    assert masked(text) == text
