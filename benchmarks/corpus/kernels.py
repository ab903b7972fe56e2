"""Compiled loops of the corpus that no other benchmark compares: beside the nearest thing that kept packages offer.

    python benchmarks/corpus/kernels.py          # a minute or two; writes benchmarks/results/data_kernels.json

Both arms of a pair see the same texts, take turns, and do the same work as far as a package or a few lines of Python
can; where they do less, it is said below. CPU seconds of one process, the least of the rounds; compilation is before.

    normalise         unicodedata, regular expressions for white space and control characters, ftfy's test for mojibake
    fingerprints      lower-cased, split and joined by Python, hashed by xxhash; of documents and of their lines
    boilerplate       `re` with the same phrases on every short line, without menus and bars
    code              regular expressions and `bytes.translate` for the same counts, without runs of mixed data
    heuristic         regular expressions for words, letters, symbols and sentence ends; a set for repeated lines
"""

import argparse
import random
import re
import statistics
import sys
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import ftfy.badness
import numpy as np
import orjson
import xxhash
import zstandard
from record import write_result

from glmforge.data.documents.batch import DocumentBatch
from glmforge_corpus.deduplicate.fingerprints import fingerprints, paragraphs
from glmforge_corpus.extract.normalise import Normalise
from glmforge_corpus.filter.boilerplate import PHRASES, Boilerplate
from glmforge_corpus.filter.code_kernel import measure_programs
from glmforge_corpus.filter.quality_heuristic import heuristic_quality

ROOT = Path(__file__).resolve().parents[2]
CODE = [
    f"src/glmforge_corpus/{part}"
    for part in (
        "extract/normalise.py",
        "deduplicate/fingerprints.py",
        "filter/boilerplate_kernel.py",
        "filter/code_kernel.py",
        "filter/quality_heuristic.py",
    )
]
Arm = Callable[[], object]

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufeff\u200b\u00ad]")
_LINE_END, _TRAILING, _BLANK_LINES = (
    re.compile(r"\r\n?|\u2028|\u2029"),
    re.compile(r"[ \t]+$", re.M),
    re.compile(r"\n{3,}"),
)


def _normalise(texts: list[str]) -> list[str]:
    done = []
    for text in texts:
        text = ftfy.fix_text(text) if ftfy.badness.is_bad(text) else unicodedata.normalize("NFC", text)
        text = _TRAILING.sub("", _LINE_END.sub("\n", _CONTROL.sub("", text)))
        done.append(_BLANK_LINES.sub("\n\n", text).strip())
    return done


def _hashes(texts: list[str]) -> list[bytes]:
    return [xxhash.xxh3_128_digest(" ".join(text.lower().split())) for text in texts]


def _boilerplate(texts: list[str]) -> int:
    wholes = "|".join(phrases for lists in PHRASES["whole"].values() for phrases in lists.values())
    starts = "|".join(phrases for lists in PHRASES["start"].values() for phrases in lists.values())
    anywhere = "|".join(phrases for lists in PHRASES["anywhere"].values() for phrases in lists.values())
    pattern = re.compile(rf"^\W*(?:{wholes})\W*$|^(?:{starts})|{anywhere}", re.I)
    return sum(bool(pattern.search(line)) for text in texts for line in text.split("\n") if len(line) <= 300)


_BASE64, _HEX, _COMMENT = (
    re.compile(rb"[A-Za-z0-9+/=]{64,}"),
    re.compile(rb"(?:0x|\\x)?[0-9a-fA-F]{16,}"),
    re.compile(rb"^\s*(?:#|//|\*|--|;|%)", re.M),
)
_DATA_LINE = re.compile(rb"^[\s\d.,;:{}()\[\]+-]+$", re.M)
_LETTERS = bytes(range(65, 91)) + bytes(range(97, 123))


def _code(texts: list[bytes]) -> list[tuple[int, ...]]:
    return [
        (
            len(lines := text.split(b"\n")),
            max(map(len, lines)),
            len(text) - len(text.translate(None, _LETTERS)),
            len(text) - len(text.translate(None, b"0123456789")),
            len(text) - len(text.translate(None, b" \t\r\n")),
            sum(len(run) for run in _BASE64.findall(text)),
            sum(len(run) for run in _HEX.findall(text)),
            len(_COMMENT.findall(text)),
            len(_DATA_LINE.findall(text)),
        )
        for text in texts
    ]


_WORD, _LETTER, _SYMBOL, _SENTENCE = (
    re.compile(r"\w+"),
    re.compile(r"[^\W\d_]"),
    re.compile(r"[#{}<>|\\=~^*_/]"),
    re.compile(r"[.!?。！？]+(?=\s|$)"),
)


def _heuristic(texts: list[str]) -> list[tuple[int, ...]]:
    rows = []
    for text in texts:
        lines = text.split("\n")
        counts = [len(pattern.findall(text)) for pattern in (_WORD, _LETTER, _SYMBOL, _SENTENCE)]
        rows.append((*counts, sum(len(line) for line in lines if len(line) < 30), len(lines) - len(set(lines))))
    return rows


def pairs(texts: list[str]) -> dict[str, tuple[Arm, Arm, int]]:
    """Name -> (ours, theirs, bytes)."""
    batch = DocumentBatch.from_columns([str(i) for i in range(len(texts))], texts, "s")
    data, offsets, encoded = batch.text_bytes, batch.text_offsets, [text.encode() for text in texts]
    _, starts, stops = paragraphs(data, offsets, "line")
    size, every = int(batch.text_lengths.sum()), np.ones(len(texts), np.bool_)
    return {
        "normalise": (lambda: Normalise().process(batch), lambda: _normalise(batch.texts), size),
        "fingerprints": (
            lambda: fingerprints(data, offsets[:-1], offsets[1:], "words"),
            lambda: _hashes(batch.texts),
            size,
        ),
        "fingerprints of lines": (
            lambda: fingerprints(data, starts, stops, "words"),
            lambda: [_hashes([line for line in text.split("\n") if line.strip()]) for text in batch.texts],
            size,
        ),
        "boilerplate": (lambda: Boilerplate().process(batch), lambda: _boilerplate(batch.texts), size),
        "code": (lambda: measure_programs(data, offsets, every), lambda: _code(encoded), size),
        "heuristic": (lambda: heuristic_quality(data, offsets), lambda: _heuristic(batch.texts), size),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    packed = args.data / "text" / "debian-docs-multilingual.jsonl.zst"
    with zstandard.open(packed, "rb") as stream:
        texts = [orjson.loads(line)["text"] for line in stream.read().splitlines()]
    texts = random.Random(0).sample(texts, 1000)
    found = pairs(texts)
    result: dict[str, Any] = {"documents": len(texts), "rounds": args.rounds, "MB_per_cpu_second": {}}
    for name, (ours, theirs, size) in found.items():
        seconds: dict[str, list[float]] = {"ours": [], "kept": []}
        for round_number in range(args.rounds + 1):
            for arm, job in (("ours", ours), ("kept", theirs)):
                started = time.process_time()
                job()
                if round_number:
                    seconds[arm].append(time.process_time() - started)
        rates = {arm: round(size / 1e6 / min(values), 2) for arm, values in seconds.items()}
        spread = {f"{arm}_median": round(size / 1e6 / statistics.median(values), 2) for arm, values in seconds.items()}
        result["MB_per_cpu_second"][name] = rates | spread | {"ratio": round(rates["ours"] / rates["kept"], 1)}
        print(name, result["MB_per_cpu_second"][name], flush=True)
    write_result("data_kernels", result, code=CODE, libraries=("numba", "ftfy", "xxhash"))


if __name__ == "__main__":
    main()
