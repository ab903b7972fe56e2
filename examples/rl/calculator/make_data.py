"""The data of the configurations beside this file: products, a few of them with the help of a calculator.

    python examples/rl/calculator/make_data.py [directory]

Of the demonstrations one in four calls the calculator and copies what it returns, the others say the product at once,
which so small a model cannot learn. The prompts have no demonstrations. Digits are tokens of their own. Everything lies
in runs/calculator unless another directory is given.
"""

import json
import random
import sys
from collections.abc import Iterable
from pathlib import Path

from glmforge.data.tokens.bpe import train_tokenizer

SHOWN, PROMPTS, HELD_OUT = 4000, 3000, 300
MARK = "####"
VOCAB_SIZE = 256 + 2 + 36
"""Bytes, the pairs that make the mark before an answer, special tokens."""


def make_data(directory: Path) -> None:
    """Tokenizer, demonstrations, prompts, and held-out prompts, in `directory`."""
    draw = random.Random(0)
    train_tokenizer([MARK] * 4, VOCAB_SIZE, directory / "tokenizer", overwrite=True)
    pairs = [(a, b) for a in range(10, 100) for b in range(10, 100)]
    draw.shuffle(pairs)
    _leave_out_schemas(directory / "tokenizer" / "tokenizer_config.json")
    shown, asked = pairs[:SHOWN], pairs[SHOWN : SHOWN + PROMPTS]
    _write(directory / "demonstrations.jsonl", (_demonstration(*one, calls=draw.random() < 0.25) for one in shown))
    _write(directory / "prompts.jsonl", (_prompt(*one) for one in asked))
    _write(directory / "held-out.jsonl", (_prompt(*one) for one in pairs[-HELD_OUT:]))


def _leave_out_schemas(file: Path) -> None:
    """Of functions, from prompts: byte by byte they would be hundreds of tokens, and there is one function only."""
    config = json.loads(file.read_text("utf-8"))
    config["chat_template"] = config["chat_template"].replace("{%- if tools -%}", "{%- if false -%}", 1)
    file.write_text(json.dumps(config), "utf-8")


def _demonstration(a: int, b: int, *, calls: bool) -> dict[str, object]:
    call = {"function": {"name": "calc", "arguments": {"e": f"{a}*{b}"}}}
    helped = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": str(a * b)},
    ]
    answer = {"role": "assistant", "content": f"{MARK} {a * b}"}
    return {"messages": [{"role": "user", "content": f"{a}*{b}="}, *(helped if calls else []), answer]}


def _prompt(a: int, b: int) -> dict[str, object]:
    return {"prompt": f"{a}*{b}=", "verifier": {"kind": "number", "answer": str(a * b)}}


def _write(file: Path, records: Iterable[dict[str, object]]) -> None:
    file.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")


if __name__ == "__main__":
    make_data(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/calculator"))
