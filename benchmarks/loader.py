"""What the data stream costs: start-up with 10^9 samples, tokens per second, memory; against Megatron-core's dataset.

    python benchmarks/loader.py                  # minutes; writes benchmarks/results/loader.json
    python benchmarks/loader.py --quick          # a trial, writes nothing

Start-up is from opening the shard to the first batch in hand, in a process of its own, on sparse files: holes in the
disk as large as 10^9 rows of 4,096 tokens (8 TB) and their best-fit packing (20 GB), of which only what the first
batches touch is written. The time to import torch and glmforge is not in it. Throughput is on a shard of random ids
in the page cache, batches being handed out and dropped; its target is 20 times what the fastest GPU trains of
GLM-4.5-Air, 3,000 tokens per second. `memory_MB` is what is not a mapped file, in all processes together, after a
tenth of the batches and after all of them.

Megatron-core takes part if it can be imported. It needs no CUDA here and none of its dependencies:

    pip install --no-deps --target /some/dir megatron-core==0.16.1
    PYTHONPATH=/some/dir python benchmarks/loader.py

Its GPTDataset is read through torch's DataLoader, as Megatron's training does, with masks and position ids left out.
It lists and shuffles all samples before the first, so that its start-up is measured with fewer and the growth shown.
"""

import argparse
import importlib.util
import json
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
from record import write_result
from torch.utils.data import DataLoader

from glmforge.config.load import load_model_config
from glmforge.config.phase import PhaseConfig
from glmforge.config.schema import RunConfig
from glmforge.data.stream.curriculum import Curriculum
from glmforge.data.stream.loader import Loader
from glmforge.data.stream.packing_file import PackingCounts, make_header, packing_arrays, packing_identity, packing_path
from glmforge.data.stream.phase import PhaseStream
from glmforge.data.stream.plan import planned_batches
from glmforge.data.tokens.shard_writer import ShardWriter
from glmforge.data.tokens.shards import HEADER, MAGIC, VERSION, ShardInfo, TokenShard, shard_paths

TARGET = 20 * 3_000
SEQ_LEN = 4096
VOCAB_SIZE = 50_000
HAS_MEGATRON = importlib.util.find_spec("megatron") is not None


def stream_of(prefix: Path, num_samples: int, batch_size: int, packing: str) -> tuple[PhaseStream, PhaseConfig]:
    """All that a run opens of its data: a phase of `num_samples` rows."""
    model = load_model_config("tiny").model_copy(update={"vocab_size": VOCAB_SIZE, "max_position_embeddings": SEQ_LEN})
    phase = {"name": "main", "seq_len": SEQ_LEN, "batch_size": batch_size, "packing": packing}
    config = RunConfig.model_validate(
        {
            "name": "loader",
            "model": model.model_dump(),
            "data": {"tokenizer": "none", "sources": [{"name": "text", "path": str(prefix)}]},
            "phases": [phase | {"steps": -(-num_samples // batch_size)}],
        }
    )
    return Curriculum(config, {"text": TokenShard(prefix)}).stream(0, {}), config.phases[0]


# Files


def write_random_shard(prefix: Path, num_tokens: int) -> None:
    """Documents of about 800 tokens."""
    generator, left = np.random.default_rng(0), num_tokens
    with ShardWriter(prefix, VOCAB_SIZE) as writer:
        while left > 0:
            lengths = generator.integers(1, 1600, size=10_000)
            lengths = lengths[: np.searchsorted(np.cumsum(lengths), left) + 1]
            writer.add(generator.integers(0, VOCAB_SIZE, size=lengths.sum(), dtype=np.uint16), lengths)
            left -= int(lengths.sum())
        writer.finish("benchmark", "random ids", num_text_bytes=4 * num_tokens)


def write_sparse_shard(prefix: Path, num_samples: int) -> TokenShard:
    """Zeros, in documents of 2^30 tokens; the files take room for the index only."""
    bin_path, idx_path, json_path = shard_paths(prefix)
    num_tokens = num_samples * SEQ_LEN + 1
    starts = np.arange(0, num_tokens, 2**30, dtype="<i8")
    lengths = np.diff(starts, append=num_tokens).astype("<i4")
    header = HEADER.pack(MAGIC, VERSION, 8, len(starts), len(starts) + 1)
    borders = np.arange(len(starts) + 1, dtype="<i8")
    idx_path.write_bytes(header + lengths.tobytes() + (2 * starts).tobytes() + borders.tobytes())
    with bin_path.open("wb"):
        os.truncate(bin_path, 2 * num_tokens)
    info = ShardInfo("benchmark", VOCAB_SIZE, len(starts), num_tokens, 4 * num_tokens, "zeros", "of zeros")
    json_path.write_text(info.to_json())
    return TokenShard(prefix)


def write_sparse_packing(shard: TokenShard, num_samples: int, batch_size: int) -> None:
    """One piece per row; only the rows of the first batch are filled in."""
    identity = packing_identity(shard, SEQ_LEN)
    path = packing_path(shard, SEQ_LEN, identity)
    counts = PackingCounts(SEQ_LEN, num_samples, num_samples, num_samples, shard.num_documents, shard.num_tokens, 0, 0)
    path.write_bytes(make_header(identity, bytes(32), counts))
    os.truncate(path, counts.num_bytes)
    offsets, starts, lengths = packing_arrays(np.memmap(path, np.uint8, "r+"), counts)
    stream, _ = stream_of(shard.prefix, num_samples, batch_size, "best_fit")
    for place in stream.locate(range(batch_size)):
        offsets[place.row : place.row + 2] = (place.row, place.row + 1)
        starts[place.row], lengths[place.row] = place.row * SEQ_LEN, SEQ_LEN


# Start-up


def in_a_process(function: Callable[..., dict[str, float]], *args: Any) -> dict[str, float]:
    """What `function` returns, and by how much the peak of memory grew; in a process that has just the imports."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, function, args))
    process.start()
    result: dict[str, float] = receiver.recv()
    process.join()
    return result


def _send(sender: Any, function: Callable[..., dict[str, float]], args: tuple[Any, ...]) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = function(*args)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    sender.send(result | {"peak_rss_grew_MB": round(grown / 1024, 1)})


def start_ours(prefix: Path, num_samples: int, batch_size: int, packing: str) -> dict[str, float]:
    started = time.perf_counter()
    stream, phase = stream_of(prefix, num_samples, batch_size, packing)
    next(iter(Loader(stream, planned_batches(phase, 0))))
    return {"seconds": round(time.perf_counter() - started, 3)}


def start_megatron(prefix: Path, num_samples: int, batch_size: int, cache: Path) -> dict[str, float]:
    started = time.perf_counter()
    next(iter(megatron_batches(prefix, num_samples, batch_size, 0, cache)))
    first = time.perf_counter() - started
    started = time.perf_counter()
    next(iter(megatron_batches(prefix, num_samples, batch_size, 0, cache)))
    return {"seconds": round(first, 3), "seconds_when_cached": round(time.perf_counter() - started, 3)}


# Throughput


def our_batches(
    prefix: Path, num_samples: int, batch_size: int, num_workers: int, packing: str
) -> Generator[Any, None, None]:
    stream, phase = stream_of(prefix, num_samples, batch_size, packing)
    yield from Loader(stream, planned_batches(phase, 0), num_workers=num_workers)


def megatron_batches(
    prefix: Path, num_samples: int, batch_size: int, num_workers: int, cache: Path
) -> Generator[Any, None, None]:
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.utils import Split

    config = GPTDatasetConfig(
        random_seed=1,
        sequence_length=SEQ_LEN,
        blend=([str(prefix)], None),
        split="1,0,0",
        path_to_cache=str(cache),
        tokenizer=_MegatronTokenizer(),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    data = GPTDataset.build_low_level_dataset(str(prefix), config)
    documents = np.arange(GPTDataset.numel_low_level_dataset(data), dtype=np.int32)
    samples = GPTDataset(data, str(prefix), documents, num_samples, Split.train, config)
    yield from DataLoader(samples, batch_size=batch_size, num_workers=num_workers, drop_last=True)


class _MegatronTokenizer:
    """What GPTDataset asks of one."""

    vocab_size, eod, pad = VOCAB_SIZE, 0, 0
    unique_identifiers: dict[str, str] = {}  # noqa: RUF012


def throughput(batches: Generator[Any, None, None], batch_size: int, num_batches: int) -> dict[str, float]:
    """Of all but the first tenth, during which processes start."""
    num_first = num_batches // 10
    for _ in range(num_first):
        next(batches)
    memory, started = memory_bytes(), time.perf_counter()
    for _ in range(num_batches - num_first):
        next(batches)
    seconds = time.perf_counter() - started
    later = memory_bytes()
    batches.close()
    tokens = (num_batches - num_first) * batch_size * SEQ_LEN
    return {
        "tokens_per_second": round(tokens / seconds),
        "memory_MB": [round(each / 2**20) for each in (memory, later)],
    }


def memory_bytes() -> int:
    """Anonymous and shared memory of this process and its children, shared pages once; mapped files are not in it."""
    total = 0
    for pid in [os.getpid(), *(child.pid for child in multiprocessing.active_children())]:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                total += 1024 * int(line.split()[1])
    return total


def measure_throughput(prefix: Path, cache: Path, workers: list[int], num_tokens: int) -> list[dict[str, Any]]:
    rows = []
    for batch_size in (8, 64):
        num_batches = max(20, num_tokens // (batch_size * SEQ_LEN))
        num_samples = 10 * num_batches * batch_size  # reading ahead included
        for num_workers in workers:
            sides = {
                packing: our_batches(prefix, num_samples, batch_size, num_workers, packing)
                for packing in ("truncate", "best_fit")
            }
            if HAS_MEGATRON:
                sides["megatron"] = megatron_batches(prefix, num_samples, batch_size, num_workers, cache)
            for side, batches in sides.items():
                result = throughput(batches, batch_size, num_batches)
                rows.append({"side": side, "batch_size": batch_size, "num_workers": num_workers, **result})
                print(json.dumps(rows[-1]), file=sys.stderr)
    return rows


def measure_start_up(directory: Path, quick: bool) -> list[dict[str, Any]]:
    rows = []
    for num_samples in (10**6, 10**7) if quick else (10**6, 10**7, 10**8, 10**9):
        prefix = directory / f"sparse{num_samples}"
        write_sparse_packing(write_sparse_shard(prefix, num_samples), num_samples, 8)
        for packing in ("truncate", "best_fit"):
            result = in_a_process(start_ours, prefix, num_samples, 8, packing)
            rows.append({"side": packing, "num_samples": num_samples, **result})
        if HAS_MEGATRON and num_samples <= 10**8:
            cache = directory / f"cache{num_samples}"
            result = in_a_process(start_megatron, prefix, num_samples, 8, cache)
            rows.append({"side": "megatron", "num_samples": num_samples, **result})
        print("\n".join(map(json.dumps, rows[-3:])), file=sys.stderr)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        start_up = measure_start_up(directory, quick)
        write_random_shard(directory / "text", 2**24 if quick else 2**28)
        workers = [0, 2] if quick else [0, 1, 2, 4, 8]
        rows = measure_throughput(directory / "text", directory / "cache", workers, 2**22 if quick else 2**27)
    result = {
        "seq_len": SEQ_LEN,
        "start_up": start_up,
        "throughput": rows,
        "target_tokens_per_second": TARGET,
    }
    if not quick:
        write_result("loader", result, code=["src/glmforge/data/stream"], libraries=["megatron-core"])
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
