"""Training of a byte-level BPE: ours against tokenizers, rustbpe, gigatoken and bpeasy, 100 MB, two vocabularies.

    python benchmarks/data/tokenizer_training.py [--data DIR]
                                                      # writes benchmarks/results/data_tokenizer_training.json

Each arm is a process of its own that reads the same text from a file and trains once; its CPU seconds (user + system)
are from having the texts to having a tokenizer's merges, one thread each, its memory the peak of the process. Arms
alternate, `--repeats` times. Peers that cannot be imported are named and left out; bpeasy is no dependency of ours:

    python -m venv --system-site-packages /some/dir && /some/dir/bin/pip install bpeasy==0.1.6
    python benchmarks/data/tokenizer_training.py --peer-python /some/dir/bin/python

All but gigatoken get GLM's split rule; gigatoken's trainer has one rule of its own and takes documents between
separators. What ours and tokenizers have learnt is compared byte by byte. Our loops are compiled before.

Expected before measuring: ours 5-8 CPU seconds at either size, rustbpe 18, gigatoken 9 and 80, tokenizers 45-70.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from record import write_result
from tokenizer_text import DATA, mixed_texts

PEERS = ("tokenizers", "rustbpe", "gigatoken", "numba", "numpy")
VOCAB_SIZES = (32_768, 151_552)
ARMS = ("glmforge", "tokenizers", "rustbpe", "gigatoken", "bpeasy")
SEPARATOR = "\x00\x01separator\x01\x00"


def train_glmforge(texts: list[str], vocab_size: int, keep: Path | None) -> list[Any]:
    from glmforge.data.tokens.bpe import train_natively
    from glmforge.data.tokens.merges import learn_merges
    from glmforge.data.tokens.spelling import byte_ids
    from glmforge.data.tokens.word_counts import WordCounter

    counter = WordCounter(["<|x|>"])  # compiles
    counter.add_texts(["warm up warm up"] * 100)
    learn_merges(counter.finish(), 260, byte_ids())
    return measured(lambda: train_natively(_blocks(texts), vocab_size), keep)


def train_tokenizers(texts: list[str], vocab_size: int, keep: Path | None) -> list[Any]:
    from glmforge.data.tokens.bpe import train_with_library

    return measured(lambda: train_with_library(_blocks(texts), vocab_size), keep)


def _blocks(texts: list[str]) -> Any:
    from glmforge.data.tokens.blocks import block_of_texts

    return (block_of_texts(texts[i : i + 100]) for i in range(0, len(texts), 100))


def train_rustbpe(texts: list[str], vocab_size: int, keep: Path | None) -> list[Any]:
    import rustbpe

    from glmforge.data.tokens.characters import SPLIT_PATTERN

    tokenizer = rustbpe.Tokenizer()
    return measured(lambda: tokenizer.train_from_iterator(iter(texts), vocab_size, pattern=SPLIT_PATTERN), None)


def train_gigatoken(texts: list[str], vocab_size: int, keep: Path | None) -> list[Any]:
    import gigatoken

    data = SEPARATOR.join(texts).encode()
    return measured(lambda: gigatoken.train_bpe(data, vocab_size, [], separator=SEPARATOR.encode()), None)


def train_bpeasy(texts: list[str], vocab_size: int, keep: Path | None) -> list[Any]:
    import bpeasy

    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    return measured(lambda: bpeasy.train_bpe(iter(texts), pattern, 128, vocab_size), None)


def measured(train: Any, keep: Path | None) -> list[Any]:
    started = time.process_time()
    result = train()
    seconds = time.process_time() - started
    if keep is not None:
        keep.write_text(result.to_str())
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return [round(seconds, 2), round(int(peak.split()[1]) / 1e6, 2)]


def run_arm(arm: str, path: Path, vocab_size: int, keep: Path) -> None:
    """In a process of its own: print CPU seconds and peak memory."""
    texts = json.loads(path.read_text())
    train = globals()[f"train_{arm}"]
    print(json.dumps(train(texts, vocab_size, keep if arm in ("glmforge", "tokenizers") else None)))


def spawn(python: str, arm: str, path: Path, vocab_size: int, keep: Path) -> list[float] | None:
    environment = os.environ | {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = [python, __file__, "--arm", arm, "--text", str(path), "--vocab", str(vocab_size), "--keep", str(keep)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        print(f"{arm}: failed: {done.stderr.strip().splitlines()[-1][:200]}")
        return None
    seconds, gigabytes = json.loads(done.stdout.splitlines()[-1])
    return [seconds, gigabytes]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--keep", type=Path, default=None, help=argparse.SUPPRESS)
    for internal in ("--arm", "--text", "--vocab"):
        parser.add_argument(internal, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.arm:
        run_arm(arguments.arm, Path(arguments.text), int(arguments.vocab), arguments.keep)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "texts.json"
        texts = mixed_texts(arguments.data)
        path.write_text(json.dumps(texts))
        content: dict[str, Any] = {"documents": len(texts), "bytes": sum(len(text.encode()) for text in texts)}
        del texts
        content["runs"] = run_all(arguments.peer_python, path, arguments.repeats, Path(folder))
        content["merges_equal_those_of_tokenizers"] = {
            str(size): (Path(folder) / f"glmforge-{size}").read_bytes()
            == (Path(folder) / f"tokenizers-{size}").read_bytes()
            for size in VOCAB_SIZES
        }
    write_result("data_tokenizer_training", content, code=["src/glmforge/data/tokens"], libraries=PEERS)
    print(json.dumps(content, indent=1))


def run_all(peer_python: str, path: Path, repeats: int, folder: Path) -> dict[str, Any]:
    runs: dict[str, Any] = {}
    for vocab_size in VOCAB_SIZES:
        times: dict[str, list[list[float]]] = {}
        for _ in range(repeats):
            for arm in ARMS:
                if times.get(arm, True):
                    python = peer_python if arm == "bpeasy" else sys.executable
                    run = spawn(python, arm, path, vocab_size, folder / f"{arm}-{vocab_size}")
                    times.setdefault(arm, []).extend([run] if run else [])
        runs[str(vocab_size)] = {
            arm: {
                "cpu_seconds_min": min(run[0] for run in by),
                "cpu_seconds_median": statistics.median(run[0] for run in by),
                "peak_GB": max(run[1] for run in by),
                "runs": len(by),
            }
            for arm, by in times.items()
            if by
        }
        print(json.dumps({vocab_size: runs[str(vocab_size)]}, indent=1), flush=True)
    return runs


if __name__ == "__main__":
    main()
