"""The texts of the tokenizer benchmarks: mixed prose, documentation in forty languages, mathematics and code.

About 100 MB: the multilingual documents whole (60 MB), plays, articles and web pages (4 MB), GSM8K and MATH (8 MB),
the Python standard library (about 30 MB), filled up with chunks of English documentation; shuffled.
"""

import io
import json
import random
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[2].parent / "shared" / "data"


def mixed_texts(data: Path, num_bytes: int = 100_000_000) -> list[str]:
    """The mixture; its order does not depend on the machine but for the version of Python's library."""
    if not (data / "text").is_dir():
        raise SystemExit(f"{data}: no such data: name its directory with --data")
    texts = [record["text"] for record in jsonl(data / "text/debian-docs-multilingual.jsonl.zst")]
    texts += [(data / "text" / name).read_text() for name in ("tinyshakespeare.txt", "wiki_demo.txt")]
    texts += [record["text"] for record in jsonl(data / "text/c4_demo.jsonl")]
    texts += [f"{r['problem']}\n{r['solution']}" for r in jsonl(data / "eval/math-test.jsonl")]
    texts += [f"{r['question']}\n{r['answer']}" for r in jsonl(data / "eval/gsm8k-train.jsonl")]
    texts += list(_standard_library())
    size = sum(len(text.encode()) for text in texts)
    for record in jsonl(data / "dedup/documents.jsonl.zst"):
        if size >= num_bytes:
            break
        texts.append(record["text"])
        size += len(record["text"].encode())
    texts = [text for text in texts if text]
    random.Random(0).shuffle(texts)
    return texts


def all_texts(data: Path) -> list[str]:
    """The mixture, and every text of the data directory that is not in it, 100,000 and more documents."""
    texts = mixed_texts(data)
    texts += [record["text"] for record in jsonl(data / "dedup/documents.jsonl.zst")]
    for path in sorted(data.rglob("*")):
        if path.suffix in (".json", ".txt", ".csv", ".jsonl") and path.is_file():
            texts.append(path.read_text(errors="replace"))
    return texts


def jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file."""
    import zstandard

    with path.open("rb") as file:
        stream = zstandard.ZstdDecompressor().stream_reader(file) if path.suffix == ".zst" else file
        yield from map(json.loads, io.TextIOWrapper(stream, encoding="utf-8"))


def _standard_library() -> Iterator[str]:
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        if "site-packages" not in path.parts:
            try:
                yield path.read_text()
            except UnicodeDecodeError:
                continue
