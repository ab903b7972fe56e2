"""The data of the configurations beside this file: sums of two numbers, and a tokenizer that writes digits apart.

    python examples/rl/make_data.py [directory]

Many demonstrations are of short sums, few of long ones (three digits and three digits); the long prompts of
reinforcement learning have answers to compare with and no demonstrations. Held-out long sums are in no other file.
GLM's tokenizer packs up to three digits into a token; this one has learnt no pair of digits, so that each is a token.
Everything lies in runs/sums unless another directory is given.
"""

import json
import random
import sys
from collections.abc import Iterable
from pathlib import Path

from glmforge.data.tokens.bpe import train_tokenizer

SHORT, FEW, HELD_OUT, PROMPTS = 5000, 800, 500, 10_000
MARK = "####"
VOCAB_SIZE = 256 + 2 + 36
"""Bytes, the pairs that make the mark before an answer, special tokens."""


def make_data(directory: Path, few: int = FEW) -> None:
    """Tokenizer, demonstrations, prompts, and held-out ones of both, in `directory`."""
    draw = random.Random(0)
    train_tokenizer([MARK] * 4, VOCAB_SIZE, directory / "tokenizer", overwrite=True)
    short = _pairs(draw, 0, 100, SHORT)
    long = _pairs(draw, 100, 1000, HELD_OUT + few + PROMPTS)
    held_out, shown, asked = long[:HELD_OUT], long[HELD_OUT : HELD_OUT + few], long[HELD_OUT + few :]
    _write(directory / "short.jsonl", map(_demonstration, short))
    _write(directory / "few.jsonl", map(_demonstration, shown))
    _write(directory / "few-held-out.jsonl", map(_demonstration, held_out))
    _write(directory / "prompts.jsonl", map(_prompt, asked))
    _write(directory / "prompts-held-out.jsonl", map(_prompt, held_out))


def _pairs(draw: random.Random, low: int, high: int, number: int) -> list[tuple[int, int]]:
    found: dict[tuple[int, int], None] = {}
    while len(found) < number:
        found[draw.randrange(low, high), draw.randrange(low, high)] = None
    return list(found)


def _demonstration(pair: tuple[int, int]) -> dict[str, object]:
    return {"prompt": f"{pair[0]}+{pair[1]}=", "completion": f"{MARK} {sum(pair)}"}


def _prompt(pair: tuple[int, int]) -> dict[str, object]:
    return {"prompt": f"{pair[0]}+{pair[1]}=", "verifier": {"kind": "number", "answer": str(sum(pair))}}


def _write(file: Path, records: Iterable[dict[str, object]]) -> None:
    file.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")


if __name__ == "__main__":
    make_data(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/sums"))
