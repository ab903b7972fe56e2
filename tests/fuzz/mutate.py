"""Damage to bytes and text: flips, cuts, repeats, tokens of a dictionary. Every choice comes from one generator."""

from collections.abc import Sequence
from random import Random

from fuzz.format import Mutator

NUMBERS = (
    *(0, 1, -1, 2**7, 2**8, 2**15, 2**16, 2**31 - 1, 2**31, 2**32),
    *(2**53, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30),
)

TOKENS = (
    *(str(number).encode() for number in NUMBERS),
    *(b"NaN", b"-Infinity", b"1e999", b"1e-999", b"0x10", b"null", b"true", b'""', b"[]", b"{}", b"[[]]", b"-0.0"),
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"'", b"\\", b"\\u0000", b'"\\ud800"', b"#", b"%", b"&a", b"*a", b"!"),
    *(
        *(b"\0", b"\r", b"\n", b"\n\n", b"\t", b"\x1b[31m", b"\xff", b"\xfe\xff", b"\xef\xbb\xbf"),
        *(b"\xc0\x80", b"\xed\xa0\x80"),
    ),
    *("\u2028 \u202e \U0001f600 e\u0301 \ufeff \u0130".encode().split(b" ")),
    *(b"../../../../etc/passwd", b"/dev/zero", b"/dev/stdin", b"/proc/self/mem", b"~", b"$HOME", b"%s%n", b"."),
    *(b"__class__", b"__init__", b"!!python/object/apply:os.system [id]", b"{{ 7*7 }}", b"<<: *a", b"---\n", b"..."),
)


def byte_mutator(tokens: Sequence[bytes] = TOKENS, max_changes: int = 4) -> Mutator:
    """One to `max_changes` changes at random places, most often one."""

    def damage(content: bytes, rng: Random) -> bytes:
        changed = bytearray(content)
        for _ in range(_few(rng, max_changes)):
            rng.choice(_CHANGES)(changed, rng, tokens)
        return bytes(changed)

    return damage


def one_of(*mutators: Mutator) -> Mutator:
    """One of several kinds of damage, chosen anew for each case."""
    return lambda content, rng: rng.choice(mutators)(content, rng)


def _few(rng: Random, most: int) -> int:
    return min(most, 1 + int(rng.expovariate(1.5)))


def _flip_bit(content: bytearray, rng: Random, tokens: Sequence[bytes]) -> None:
    if content:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)


def _set_byte(content: bytearray, rng: Random, tokens: Sequence[bytes]) -> None:
    if content:
        content[rng.randrange(len(content))] = rng.choice((0, 0x7F, 0xFF, 0x20, rng.randrange(256)))


def _cut_off(content: bytearray, rng: Random, tokens: Sequence[bytes]) -> None:
    del content[rng.randint(0, len(content)) :]


def _remove(content: bytearray, rng: Random, tokens: Sequence[bytes]) -> None:
    start = rng.randint(0, len(content))
    del content[start : start + rng.choice((1, 2, 8, 100))]


def _insert_token(content: bytearray, rng: Random, tokens: Sequence[bytes]) -> None:
    place = rng.randint(0, len(content))
    content[place:place] = rng.choice(tokens)


def _replace_by_token(content: bytearray, rng: Random, tokens: Sequence[bytes]) -> None:
    token, place = rng.choice(tokens), rng.randint(0, len(content))
    content[place : place + len(token)] = token


def _repeat(content: bytearray, rng: Random, tokens: Sequence[bytes]) -> None:
    start = rng.randint(0, len(content))
    part = bytes(content[start : start + rng.choice((1, 10, 100))])
    content[start:start] = part * rng.choice((1, 2, 50))


def _swap_lines(content: bytearray, rng: Random, tokens: Sequence[bytes]) -> None:
    lines = bytes(content).split(b"\n")
    first, second = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[first], lines[second] = lines[second], lines[first]
    content[:] = b"\n".join(lines)


def _write_number(content: bytearray, rng: Random, tokens: Sequence[bytes]) -> None:
    """A binary integer, as headers hold them."""
    size = rng.choice((1, 2, 4, 8))
    if len(content) >= size:
        place = rng.randrange(len(content) - size + 1)
        number = rng.choice(NUMBERS) % (1 << (8 * size))
        content[place : place + size] = number.to_bytes(size, rng.choice(("little", "big")))


_CHANGES = (
    *(_flip_bit, _set_byte, _cut_off, _remove, _insert_token, _insert_token, _replace_by_token, _repeat),
    *(_swap_lines, _write_number),
)
