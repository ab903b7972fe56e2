"""When two questions are the same, and when they differ by their numbers only."""

import re

import xxhash

_NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")


def normalised_question(question: str) -> str:
    """Without case and layout."""
    return " ".join(question.casefold().split())


def question_hash(question: str) -> bytes:
    """16 bytes, equal for equal questions."""
    return xxhash.xxh3_128_digest(normalised_question(question).encode())


def pattern_hash(question: str) -> int:
    """64 bits of the question with all numbers alike: what is left of it is its template, names included."""
    return xxhash.xxh3_64_intdigest(_NUMBER.sub("0", normalised_question(question)).encode())
