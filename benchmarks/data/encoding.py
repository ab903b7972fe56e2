"""Encoding: ours against tokenizers and gigatoken on the same texts, ids compared, and `glmforge data tokenize` whole.

    python benchmarks/data/encoding.py [--data DIR]     # writes benchmarks/results/data_encoding.json

The tokenizer has 151,552 entries and is trained on the same mixture first; `--tokenizer` names one that is there.

* rate: MB of UTF-8 per CPU second (user + system of a process that does nothing else). Cold: the text is cut into
  parts, and each encoder sees each part for the first time, after a few texts that load and compile it. Warm: the same
  parts again. Arms alternate part by part.
* identity: every text of the data directory, and two million synthetic documents of all Unicode characters, spaces,
  digits, contractions and special-token look-alikes; ids compared with those of `tokenizers`.
* memory: growth of the process over a gigabyte of fresh random words.
* tokenize: the command's own work (reading Parquet, encoding, writing .bin/.idx), CPU of all its processes, with one
  and with two workers, and whether the files are equal.

Expected before measuring: ours 40-60 MB per CPU second cold, tokenizers 2, gigatoken 60-100 with memory growing by
some bytes per byte of fresh text; identity without an exception for ours, none for gigatoken beyond Unicode 15.
"""

import argparse
import json
import os
import random
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from record import write_result
from tokenizer_text import DATA, all_texts, mixed_texts

from glmforge.data.documents.batch import BatchWriter, DocumentBatch
from glmforge.data.documents.read import read_documents
from glmforge.data.tokens.bpe import train_tokenizer
from glmforge.data.tokens.fast_encoder import FastEncoder
from glmforge.data.tokens.special import SPECIAL_TOKENS
from glmforge.data.tokens.text_chunks import chunk_of_texts
from glmforge.data.tokens.tokenize import tokenize_corpus
from glmforge.data.tokens.tokenizer import Tokenizer

VOCAB_SIZE = 151_552
NUM_PARTS = 8
HF_PARTS = 2  # of which tokenizers, being slow, encodes this many


def arms_of(tokenizer: Tokenizer) -> dict[str, Any]:
    """Name -> function from a block to something; gigatoken only if it can be imported."""
    ours = tokenizer.fast_encoder
    assert ours is not None
    arms: dict[str, Any] = {
        "glmforge": lambda block: ours.encode(block.data, block.offsets),
        "tokenizers": lambda block: tokenizer.encode_batch_with_library(block.texts()),
    }
    giga = gigatoken_of(tokenizer)
    if giga is not None:
        arms["gigatoken"] = lambda block: giga(block.texts())
    return arms


def gigatoken_of(tokenizer: Tokenizer) -> Any:
    try:
        import gigatoken
    except ImportError:
        print("gigatoken: absent")
        return None
    encoder = gigatoken.Tokenizer.from_json(tokenizer._plain_json)
    return lambda texts: encoder.encode_batch(texts, parallel=False)


def measure_rates(tokenizer: Tokenizer, texts: list[str]) -> dict[str, Any]:
    arms = arms_of(tokenizer)
    for arm in arms.values():
        arm(chunk_of_texts(["warm up " * 10] * 10))
    step = -(-len(texts) // NUM_PARTS)
    blocks = [chunk_of_texts(texts[i : i + step]) for i in range(0, len(texts), step)]
    rates: dict[str, dict[str, list[float]]] = {name: {"cold": [], "warm": []} for name in arms}
    for temperature in ("cold", "warm"):
        for number, block in enumerate(blocks):
            for name, arm in arms.items():
                if name == "tokenizers" and (number >= HF_PARTS or temperature == "warm"):
                    continue
                started = time.process_time()
                arm(block)
                rates[name][temperature].append(block.num_bytes / 1e6 / (time.process_time() - started))
    return {name: {key: summary(values) for key, values in by.items() if values} for name, by in rates.items()}


def summary(values: list[float]) -> dict[str, float]:
    return {"median": round(statistics.median(values), 1), "min": round(min(values), 1), "max": round(max(values), 1)}


def compare(tokenizer: Tokenizer, texts: list[str]) -> dict[str, int]:
    """How many of the texts each encoder treats otherwise than `tokenizers`."""
    ours, giga = tokenizer.fast_encoder, gigatoken_of(tokenizer)
    assert isinstance(ours, FastEncoder)
    differing = {"documents": len(texts), "glmforge_differs": 0}
    if giga is not None:
        differing["gigatoken_differs"] = 0
    for start in range(0, len(texts), 20_000):
        part = texts[start : start + 20_000]
        expected = tokenizer.encode_batch_with_library(part)
        differing["glmforge_differs"] += sum(a != b for a, b in zip(ours.encode_batch(part), expected, strict=True))
        if giga is not None:
            differing["gigatoken_differs"] += sum(a != b for a, b in zip(giga(part).to_list(), expected, strict=True))
    return differing


def synthetic_texts(number: int, seed: int = 0) -> list[str]:
    """Short documents made to find a difference."""
    draw = random.Random(seed)
    alphabet = "  \n\r\t'sStrevemlLdaZ09١½Ⅷ你あ🙂\u200d\ufe0f\u0301\u00a0\u2028\u0085\u3000\x1c\0!?._-ſ<|>[]/"
    words = ["the", " forge", "don't", "12345", "  ", "\n\n", "数据", "ÄÖ", "e\u0301", "->", "==", *SPECIAL_TOKENS]
    everything = [chr(point) for point in range(0x110000) if not 0xD800 <= point < 0xE000]
    texts = []
    for index in range(number):
        pool = (alphabet, words, everything)[index % 3] if index % 7 else [*alphabet, *words]
        texts.append("".join(draw.choices(pool, k=draw.randrange(1, 24))))
    return texts


def measure_memory(tokenizer: Tokenizer, num_bytes: int = 1_000_000_000) -> dict[str, float]:
    """Growth of this process over random words, which no cache has seen."""
    ours = tokenizer.fast_encoder
    assert ours is not None
    generator, size = np.random.default_rng(0), 8_000_000
    before = after_first = 0.0
    started = time.process_time()
    spent = 0.0
    for number in range(-(-num_bytes // size)):
        text = generator.integers(97, 123, size=size, dtype=np.uint8)
        text[generator.random(size) < 0.12] = 32
        started = time.process_time()
        ours.encode(text, np.arange(0, size + 1, 8000))
        spent += time.process_time() - started
        before = before or resident_megabytes()
        if number == 1:
            after_first = resident_megabytes()
    return {
        "megabytes_of_text": num_bytes / 1e6,
        "resident_MB_after_first_part": round(after_first, 1),
        "resident_MB_at_the_end": round(resident_megabytes(), 1),
        "random_words_MB_per_cpu_second": round(num_bytes / 1e6 / spent, 1),
    }


def resident_megabytes() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def measure_command(tokenizer_dir: Path, texts: list[str]) -> dict[str, Any]:
    """`tokenize_corpus` from Parquet to a shard; CPU of this process and of the workers it has waited for."""
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        shard = Path(folder) / "documents.parquet"
        with BatchWriter(shard) as writer:
            for start in range(0, len(texts), 1000):
                part = texts[start : start + 1000]
                writer.write(DocumentBatch.from_columns([f"d{start + i}" for i in range(len(part))], part, "mixed"))
        for workers in (1, 2):
            rates = []
            for _ in range(3):
                started, wall = cpu_seconds(), time.perf_counter()
                info = tokenize_corpus(
                    read_documents(shard), tokenizer_dir, f"{folder}/w{workers}", num_workers=workers, overwrite=True
                )
                rates.append(info.num_text_bytes / 1e6 / (cpu_seconds() - started))
                wall = time.perf_counter() - wall
            result[f"workers_{workers}_MB_per_cpu_second"] = summary(rates)
            result[f"workers_{workers}_last_wall_seconds"] = round(wall, 1)
        names = [(Path(f"{folder}/w1{suffix}"), Path(f"{folder}/w2{suffix}")) for suffix in (".bin", ".idx", ".json")]
        result["files_equal"] = all(a.read_bytes() == b.read_bytes() for a, b in names)
    return result


def cpu_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokenizer", type=Path, help="a directory; else one is trained")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--synthetic", type=int, default=2_000_000)
    arguments = parser.parse_args()
    mixed = mixed_texts(arguments.data)
    with tempfile.TemporaryDirectory() as folder:
        directory = arguments.tokenizer or Path(folder) / "tokenizer"
        if arguments.tokenizer is None:
            train_tokenizer(mixed, VOCAB_SIZE, directory)
        tokenizer = Tokenizer.load(directory)
        content: dict[str, Any] = {"vocab_size": tokenizer.vocab_size}
        content["MB_per_cpu_second"] = measure_rates(tokenizer, mixed)
        print(json.dumps(content, indent=1))
        content["tokenize"] = measure_command(directory, mixed)
    print(json.dumps(content["tokenize"], indent=1))
    del mixed
    content["memory"] = measure_memory(tokenizer)
    content["real_documents"] = compare(tokenizer, all_texts(arguments.data))
    print(json.dumps(content["real_documents"], indent=1))
    synthetic = {"documents": 0, "glmforge_differs": 0}
    for seed in range(-(-arguments.synthetic // 100_000)):
        for key, value in compare(tokenizer, synthetic_texts(100_000, seed)).items():
            synthetic[key] = synthetic.get(key, 0) + value
    content["synthetic_documents"] = synthetic
    packages = ("tokenizers", "gigatoken", "numba", "numpy", "pyarrow")
    write_result("data_encoding", content, code=["src/glmforge/data/tokens"], libraries=packages)
    print(json.dumps(content, indent=1))


if __name__ == "__main__":
    os.environ["RAYON_NUM_THREADS"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    main()
