"""What a terabyte costs: one pipeline on 1, 2, 4 and 8 parts of real text, and what that makes of 23 trillion tokens.

    python benchmarks/corpus/scale.py              # some ten minutes; writes benchmarks/results/data_scale.json

The text is all documents of the shared data, four times: once as they are and three times with the words of each line
shuffled, so that copies have other 5-grams; in an order shuffled once, and cut into eight parts, of which a run takes
the first n. The pipeline is extraction from JSONL, the whole filter chain, exact, MinHash and substring deduplication,
then encoding. The chain judges and removes nothing (`analyze`): every stage gets all text, which no real corpus asks
for; the largest run is done once more with filters that remove (`clean`). Each run is `glmforge data run` in a process
of its own with one worker; its CPU time is that of the process and its children. A run on a thirty-second of a part
tells what starting costs: what is reported is the cost of the text beyond it. Disk is what stages leave behind,
intermediate files included.

Expected before measuring: linear within 10 %, since every task sees its own shard only, sorts are by radix or within a
partition, and filters dominate; some 100 CPU seconds per gigabyte.
"""

import json
import os
import random
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import orjson
from harness import data_arguments, json_lines
from record import write_result

from glmforge.config.tree import dump
from glmforge.data.tokens.bpe import train_tokenizer

NEEDED = ("text/debian-docs-multilingual.jsonl.zst", "dedup/documents.jsonl.zst", "text/c4_demo.jsonl")
PARTS = (1, 2, 4, 8)
COPIES = 3
VOCAB_SIZE = 32_768
TOKENS = 23e12
YIELD_OF_CRAWL = 0.1
"""Share of a crawl's text that filters and deduplication leave: an assumption, of the size that FineWeb reports."""


def documents(shared: Path) -> list[bytes]:
    """All documents as JSON lines, shuffled."""
    lines = [orjson.dumps({"text": record["text"]}) for name in NEEDED for record in json_lines(shared / name)]
    draw = random.Random(0)
    lines += [_with_words_shuffled(line, draw) for _ in range(COPIES) for line in list(lines)]
    draw.shuffle(lines)
    return lines


def _with_words_shuffled(line: bytes, draw: random.Random) -> bytes:
    parts = [part.split(" ") for part in orjson.loads(line)["text"].split("\n")]
    for words in parts:
        draw.shuffle(words)
    return orjson.dumps({"text": "\n".join(" ".join(words) for words in parts)})


def write_inputs(lines: list[bytes], directory: Path, parts: int) -> int:
    """The first `parts` eighths, a file each; returns their bytes of text."""
    directory.mkdir()
    step = len(lines) // max(PARTS)
    for part in range(parts):
        (directory / f"{part}.jsonl").write_bytes(b"\n".join(lines[part * step : (part + 1) * step]) + b"\n")
    return sum(len(orjson.loads(line)["text"].encode()) for line in lines[: parts * step])


def pipeline(raw: Path, output: Path, chain: str) -> str:
    clean = ["normalise", "language", "boilerplate", "gopher_quality", "gopher_repetition", "c4", "fineweb", "code"]
    stages: list[Any] = [
        {"extract": {"inputs": [{"source": "real", "path": str(raw)}], "shard_bytes": 1}},
        {chain: [*clean, "pii", "quality"]},
        "exact",
        {"minhash": {"threshold": 0.85}},
        "substring",
    ]
    return dump({"output": str(output), "stages": stages, "executors": {"local": {"workers": 1}}})


def cpu_of(command: list[str]) -> float:
    """CPU seconds of a command and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def bytes_below(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def measure(
    name: str, raw: Path, num_bytes: int, scratch: Path, tokenizer: Path, chain: str = "analyze"
) -> dict[str, Any]:
    output, file = scratch / f"out-{name}", scratch / f"{name}.yaml"
    file.write_text(pipeline(raw, output, chain))
    glmforge = [sys.executable, "-m", "glmforge", "data"]
    run = cpu_of([*glmforge, "run", str(file)])
    prefix = scratch / f"tokens-{name}"
    tokenize = cpu_of(
        [*glmforge, "tokenize", str(output / "documents"), "--tokenizer", str(tokenizer), "--out", str(prefix)]
    )
    report = json.loads((output / "report.json").read_bytes())
    stages = {
        stage["directory"]: {
            "cpu_seconds": stage["statistics"]["seconds"],
            "documents": stage["statistics"]["written"]["documents"],
            "text_bytes": stage["statistics"]["written"]["bytes"],
            "disk_bytes": bytes_below(output / ".work" / stage["directory"]),
        }
        for stage in report["stages"]
    }
    info = json.loads(prefix.with_suffix(".json").read_bytes())
    return {
        "text_bytes": num_bytes,
        "run_cpu_seconds": run,
        "tokenize_cpu_seconds": tokenize,
        "tokens": info["num_tokens"],
        "token_bytes": prefix.with_suffix(".bin").stat().st_size,
        "stages": stages,
    }


def beyond(run: dict[str, Any], start: dict[str, Any], what: str) -> float:
    """CPU seconds per byte of text beyond what the small run had."""
    return (run[what] - start[what]) / (run["text_bytes"] - start["text_bytes"])  # type: ignore[no-any-return]


def extrapolate(largest: dict[str, Any], start: dict[str, Any]) -> dict[str, float]:
    """Core hours and disk for 23 trillion tokens of a crawl, every byte of which goes through every stage."""
    kept = list(largest["stages"].values())[-1]["text_bytes"]
    bytes_per_token = kept / largest["tokens"]
    clean_bytes = TOKENS * bytes_per_token
    crawl_bytes = clean_bytes / YIELD_OF_CRAWL
    disk_per_byte = [stage["disk_bytes"] / largest["text_bytes"] for stage in largest["stages"].values()]
    return {
        "tokens": TOKENS,
        "bytes_per_token": bytes_per_token,
        "clean_terabytes": clean_bytes / 1e12,
        "assumed_yield": YIELD_OF_CRAWL,
        "crawl_terabytes": crawl_bytes / 1e12,
        "pipeline_core_hours": beyond(largest, start, "run_cpu_seconds") * crawl_bytes / 3600,
        "encoding_core_hours": beyond(largest, start, "tokenize_cpu_seconds") * clean_bytes / 3600,
        "disk_terabytes_of_the_largest_two_stages": sum(sorted(disk_per_byte)[-2:]) * crawl_bytes / 1e12,
        "disk_terabytes_of_all_stages": sum(disk_per_byte) * crawl_bytes / 1e12,
        "token_terabytes": TOKENS * largest["token_bytes"] / largest["tokens"] / 1e12,
    }


def main() -> None:
    args = data_arguments(__doc__, NEEDED)
    lines = documents(args.data)
    with tempfile.TemporaryDirectory(prefix="scale-") as name:
        scratch = Path(name)
        tokenizer = scratch / "tokenizer"
        train_tokenizer((orjson.loads(line)["text"] for line in lines[:20_000]), VOCAB_SIZE, tokenizer)
        few = scratch / "raw-start"
        few.mkdir()
        first = lines[: len(lines) // max(PARTS) // 32]
        (few / "0.jsonl").write_bytes(b"\n".join(first) + b"\n")
        few_bytes = sum(len(orjson.loads(line)["text"].encode()) for line in first)
        measure("warm", few, few_bytes, scratch, tokenizer)  # compiles
        start = measure("start", few, few_bytes, scratch, tokenizer)
        runs = {}
        for parts in PARTS[:1] if args.quick else PARTS:
            raw = scratch / f"raw-{parts}"
            runs[parts] = run = measure(str(parts), raw, write_inputs(lines, raw, parts), scratch, tokenizer)
            run["cpu_seconds_per_gigabyte"] = 1e9 * beyond(run, start, "run_cpu_seconds")
            run["encoding_cpu_seconds_per_gigabyte"] = 1e9 * beyond(run, start, "tokenize_cpu_seconds")
            print(
                f"{parts} parts, {run['text_bytes'] / 1e6:.0f} MB: {run['cpu_seconds_per_gigabyte']:.1f} CPU-s per GB, "
                f"encoding {run['encoding_cpu_seconds_per_gigabyte']:.1f}",
                flush=True,
            )
        removing = measure("removing", raw, run["text_bytes"], scratch, tokenizer, "clean")
    rates = [run["cpu_seconds_per_gigabyte"] for run in runs.values()]
    result = {
        "start": start,
        "runs": runs,
        "largest_with_filters_that_remove": removing,
        "largest_deviation_from_mean": max(abs(rate * len(rates) / sum(rates) - 1) for rate in rates),
        "extrapolation": extrapolate(runs[max(runs)], start),
    }
    if not args.quick:
        code = ["src/glmforge_corpus", "src/glmforge/data"]
        write_result("data_scale", result, code=code, libraries=["pyarrow", "polars", "numba"], out=args.out)
    print(json.dumps(result["extrapolation"], indent=2))


if __name__ == "__main__":
    main()
