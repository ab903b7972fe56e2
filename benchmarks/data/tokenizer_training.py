"""What training a tokenizer costs: CPU seconds and memory of the trainer of `tokenizers` with GLM's split rule.

    python benchmarks/data/tokenizer_training.py [--data DIR]
                                                      # writes benchmarks/results/data_tokenizer_training.json; minutes

Each run is a process of its own that has the texts in memory and trains once, on one thread; the CPU seconds are those
of the training, the memory is the process's peak, and beside it what it had before training.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from record import write_result
from tokenizer_text import DATA, mixed_texts

MEGABYTES = (25, 100)
VOCAB_SIZES = (32_768, 151_552)


def train(data: Path, megabytes: int, vocab_size: int) -> dict[str, float]:
    from glmforge.data.tokens.bpe import _train
    from glmforge.data.tokens.text_chunks import chunk_of_texts

    texts, size, num_bytes = mixed_texts(data), 0, megabytes * 1_000_000
    while size < len(texts) and num_bytes > 0:
        num_bytes -= len(texts[size].encode())
        size += 1
    texts = texts[:size]
    before, started = _memory("VmRSS"), time.process_time()
    trained = _train((chunk_of_texts(texts[i : i + 100]) for i in range(0, len(texts), 100)), vocab_size)
    return {
        "bytes": megabytes * 1_000_000 - num_bytes,
        "cpu_seconds": round(time.process_time() - started, 1),
        "GB_before": before,
        "peak_GB": _memory("VmHWM"),
        "tokens": trained.get_vocab_size(),
    }


def _memory(name: str) -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return round(int(line.split()[1]) / 1e6, 2)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--run", nargs=2, type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        print(json.dumps(train(arguments.data, *arguments.run)))
        return
    environment = os.environ | {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    runs: dict[str, Any] = {}
    for vocab_size in VOCAB_SIZES:
        for megabytes in MEGABYTES:
            command = [
                sys.executable,
                __file__,
                "--data",
                str(arguments.data),
                "--run",
                str(megabytes),
                str(vocab_size),
            ]
            done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
            runs.setdefault(str(vocab_size), {})[str(megabytes)] = json.loads(done.stdout.splitlines()[-1])
            print(vocab_size, megabytes, done.stdout.splitlines()[-1], flush=True)
    code = [
        "src/glmforge/data/tokens/bpe.py",
        "src/glmforge/data/tokens/characters.py",
        "benchmarks/data/tokenizer_text.py",
    ]
    write_result("data_tokenizer_training", {"runs": runs}, code=code, libraries=("tokenizers",))


if __name__ == "__main__":
    main()
