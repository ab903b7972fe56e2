"""What a save costs: training's wait, and the disk's bandwidth.

    python benchmarks/checkpoint.py --gigabytes 4     # some minutes; writes benchmarks/results/checkpoint.json

(a) Blocked seconds of a background save over the whole time of a synchronous one, on 1 and 2 ranks. Target: 5 %.
    Training computes between the save and the update that has to wait for the copy; a stand-in for it (products of
    matrices by the same threads, on the same cores, for at least three times as long as the copy takes by itself, and
    half a second) does so here. What the save takes away from it is no wait, but no less lost: the stand-in's time
    beside the save and without it are given too. They share the cores here; a GPU's work does not.
(b) Bytes per second of a synchronous save, checksums computed and everything forced to the disk, over what the disk
    itself does with as many bytes in the same directory: `dd` with `conv=fsync`, or a plain loop of writes where that
    is faster. Target: 70 %. Reading back for verification comes on top; it is measured by itself. `fio` is asked as
    well where it is installed.

The references write random bytes that they read from memory: some disks are faster with zeros. All take turns, each
after a sync, and not always in the same order; ratios are of one turn. No save is faster than the disk: a run in which
one seems to be, or in which the references scatter by more than a factor of 2, is not `credible`, and its numbers say
what else the machine was doing.

The state is that of AdamW with fp32 masters: three tensors of each size, of 1 to 64 MiB.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from record import write_result
from torch import Tensor

from glmforge.checkpoint import CheckpointMeta, save_checkpoint
from glmforge.checkpoint.policy.saver import CheckpointSaver
from glmforge.checkpoint.policy.staging import Staging
from glmforge.config.checkpoint import CheckpointConfig

LOAD = "matrix products by the training thread from the call of save until at least 3 x the copy's own time, >= 0.5 s"
SIZES = (64, 4, 4, 16, 1, 1, 32)  # MiB of the tensors of a layer


def state(num_bytes: int) -> dict[str, Tensor]:
    """Tensors of about `num_bytes` together, of random values."""
    return dict(_layers(num_bytes))


def _layers(num_bytes: int) -> Iterator[tuple[str, Tensor]]:
    layer, left = 0, num_bytes
    while left > 0:
        for i, mebibytes in enumerate(SIZES):
            for kind in ("model", "optim.mean", "optim.square"):
                yield f"{kind}.{layer}.{i}", torch.randn(mebibytes, 512, 512)
                left -= mebibytes << 20
        layer += 1


def meta(step: int) -> CheckpointMeta:
    return CheckpointMeta(
        step=step,
        phase="main",
        tokens_consumed=0,
        samples_consumed={},
        config={},
        data_fingerprint={},
        tokenizer_fingerprint="",
    )


def measure_rank(rank: int, world: int, num_bytes: int, root: Path, repeats: int, queue: Any) -> None:
    """One rank; rank 0 puts its measurements into `queue`."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // world))
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{root}/store", rank=rank, world_size=world)
    prefix = f"rank{rank}."  # each rank has tensors of its own, as with FSDP
    tensors = {prefix + name: tensor for name, tensor in state(num_bytes // world).items()}
    saver = CheckpointSaver(root / "background", CheckpointConfig(keep_last=1), run_name="benchmark")
    saver.prepare(tensors)
    total = sum(t.nbytes for t in tensors.values()) * world
    source = Path(f"/dev/shm/random-{root.name}")
    if rank == 0:
        write_random(source, total)
    found: dict[str, list[float]] = defaultdict(list)

    def reference(name: str, measure: Callable[[Path, Path], float]) -> None:
        if rank == 0:
            found[name].append(measure(source, root))

    num_products = products_lasting(max(0.5, 3 * copy_seconds(tensors)))

    def background(step: int) -> None:
        saver.save(step, tensors, meta(step))
        found["computing_beside"].append(compute(num_products))
        saver.finish_copy()
        saver.wait()
        (report,) = saver.poll()
        assert report.error is None, report.error
        found["blocked"].append(report.seconds_blocked)
        found["background_verified"].append(report.seconds_total)

    arms: list[Callable[[int], None]] = [
        lambda step: reference("dd", dd_seconds),
        lambda step: reference("plain", plain_seconds),
        lambda step: found["sync"].append(_timed_save(root / "sync", step, tensors, False)),
        lambda step: found["sync_verified"].append(_timed_save(root / "sync", step, tensors, True)),
        background,
        lambda step: found["computing_alone"].append(compute(num_products)),
    ]
    for step in range(1, repeats + 1):
        for arm in arms[step % len(arms) :] + arms[: step % len(arms)]:  # nobody is always the first
            _settle(rank, root)
            arm(step)
    if rank == 0:
        source.unlink()
        queue.put((total, dict(found)))
    if dist.is_initialized():
        dist.barrier()


def copy_seconds(tensors: dict[str, Tensor]) -> float:
    """Time to copy `tensors` into memory that has been used before."""
    staging = Staging()
    staging.start(tensors).finish()
    started = time.perf_counter()
    staging.start(tensors).finish()
    return time.perf_counter() - started


def compute(num_products: int) -> float:
    """Seconds that the stand-in for forward and backward takes."""
    left, right = torch.randn(2, 768, 768)
    started = time.perf_counter()
    for _ in range(num_products):
        left @ right
    return time.perf_counter() - started


def products_lasting(seconds: float) -> int:
    compute(10)
    return int(20 * seconds / compute(20)) + 1


def _settle(rank: int, root: Path) -> None:
    """Nothing of one arm is left to be written, or deleted, in the next."""
    if dist.is_initialized():
        dist.barrier()
    if rank == 0:
        shutil.rmtree(root / "background", ignore_errors=True)
        shutil.rmtree(root / "sync", ignore_errors=True)
        os.sync()
    if dist.is_initialized():
        dist.barrier()


def _timed_save(root: Path, step: int, tensors: dict[str, Tensor], verify: bool) -> float:
    started = time.perf_counter()
    save_checkpoint(root, step, tensors, meta(step), verify=verify)
    return time.perf_counter() - started


def dd_seconds(source: Path, folder: Path) -> float:
    """Time for one dd to write the bytes of `source` and force them to the disk."""
    target = folder / "dd"
    started = time.perf_counter()
    subprocess.run(["dd", f"if={source}", f"of={target}", "bs=4M", "conv=fsync"], check=True, capture_output=True)
    seconds = time.perf_counter() - started
    target.unlink()
    return seconds


def plain_seconds(source: Path, folder: Path) -> float:
    """The same by one thread of Python that copies 8 MiB at a time: no process to start."""
    target = folder / "plain"
    started = time.perf_counter()
    with source.open("rb", buffering=0) as reading, target.open("wb", buffering=0) as writing:
        while block := reading.read(8 << 20):
            writing.write(block)
        os.fsync(writing.fileno())
    seconds = time.perf_counter() - started
    target.unlink()
    return seconds


def write_random(source: Path, num_bytes: int) -> None:
    with source.open("wb") as stream:
        for start in range(0, num_bytes, 64 << 20):
            stream.write(os.urandom(min(64 << 20, num_bytes - start)))


def fio_bytes_per_second(folder: Path, num_bytes: int) -> float | None:
    """Sequential writes as fio measures them; None where it is not installed."""
    if shutil.which("fio") is None:
        return None
    command = ["fio", "--name=w", f"--directory={folder}", "--rw=write", "--bs=8M", "--end_fsync=1"]
    done = subprocess.run(
        [*command, f"--size={num_bytes}", "--output-format=json"], check=True, capture_output=True, text=True
    )
    (folder / "w.0.0").unlink(missing_ok=True)
    return float(json.loads(done.stdout)["jobs"][0]["write"]["bw_bytes"])


def measure(world: int, num_bytes: int, folder: Path, repeats: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=folder) as root:
        queue = mp.get_context("spawn").SimpleQueue()
        mp.spawn(measure_rank, (world, num_bytes, Path(root), repeats, queue), nprocs=world)
        total, found = queue.get()
        fio = fio_bytes_per_second(Path(root), total)
    seconds = {name: statistics.median(values) for name, values in found.items()}
    disk = [min(pair) for pair in zip(found["dd"], found["plain"], strict=True)]
    seconds_of_disk = statistics.median(disk)
    fractions = [own / save for own, save in zip(disk, found["sync"], strict=True)]
    return {
        "ranks": world,
        "bytes": total,
        "seconds": {name: round(value, 4) for name, value in seconds.items()},
        "all_seconds": {name: [round(v, 4) for v in values] for name, values in found.items()},
        "blocked_fraction": round(seconds["blocked"] / seconds["sync"], 4),
        "blocked_fraction_verified": round(seconds["blocked"] / seconds["sync_verified"], 4),
        "computing_slowed_by": round(seconds["computing_beside"] / seconds["computing_alone"], 3),
        "bandwidth_fraction": round(statistics.median(fractions), 3),
        "bandwidth_fraction_of_fastest": round(min(disk) / min(found["sync"]), 3),
        "bandwidth_fraction_verified": round(seconds_of_disk / seconds["sync_verified"], 3),
        "bandwidth_fractions": [round(fraction, 3) for fraction in fractions],
        "credible": max(fractions) <= 1.1 and max(disk) <= 2 * min(disk),
        "load_average": os.getloadavg()[0],
        "bytes_per_second": round(total / seconds["sync"]),
        "dd_bytes_per_second": round(total / seconds["dd"]),
        "fio_bytes_per_second": fio,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=4.0, help="of state, all ranks together")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path(), help="on the disk to measure")
    arguments = parser.parse_args()
    num_bytes = int(arguments.gigabytes * 1e9)
    results = [measure(world, num_bytes, arguments.folder, arguments.repeats) for world in (1, 2)]
    content = {"load_beside_background_saves": LOAD, "results": results}
    write_result("checkpoint", content, code=["src/glmforge/checkpoint"])
    for result in results:
        print(json.dumps({key: value for key, value in result.items() if key != "all_seconds"}, indent=1))


if __name__ == "__main__":
    main()
