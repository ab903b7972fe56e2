"""How byte-level tokenizers spell bytes: one printable character each, as GPT-2 did it."""

import functools


@functools.cache
def character_of_byte() -> str:
    """256 characters, byte b being spelt by the b-th: itself where that is printable, one from U+0100 on where not."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return "".join(chr(byte if byte in printable else next(others)) for byte in range(256))


@functools.cache
def byte_of_character() -> dict[int, int]:
    """Code point -> byte, the inverse."""
    return {ord(character): byte for byte, character in enumerate(character_of_byte())}


def unspell(text: str) -> bytes:
    """The bytes that are spelt so. Raises `ValueError` for a character that spells none."""
    try:
        return bytes(map(byte_of_character().__getitem__, map(ord, text)))
    except KeyError as error:
        raise ValueError(f"'{chr(error.args[0])}' does not encode a byte") from error
