"""What sinks cost a step of 100 ms: all of them together, with a scraper, and with each in trouble.

    python benchmarks/observe_overhead.py [--blocks 40]

A step multiplies matrices for about 100 ms on one core and records what a run of GLM-4.5's size does: about 70 numbers,
90 routers' lists in every tenth step. A machine's speed drifts by more than the answer, so steps with the sinks and
steps without one take turns, in blocks of ten: the cost is the mean difference of neighbouring blocks. Of each case
also, per step: seconds of the training thread within the bus (wall), and CPU seconds of all other threads, which share
its interpreter. The cases:

    none           no sink on either side: what this measurement says of nothing
    files, tensorboard, wandb, prometheus          the run's files, and one other
    all            the run's files, TensorBoard, wandb offline, Prometheus scraped once a second by another process
    dead           the same sinks; no scraper, but 8 clients that connected and never say anything
    full_disk      the same sinks on a file system without a free byte
    slow           the same sinks, and one that takes 2 s for a record, given to `Background`
"""

import argparse
import logging
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from record import write_result

from glmforge.config.observe import PrometheusConfig, TrackingConfig
from glmforge.observe.background import Background
from glmforge.observe.bus import Kind, MetricsBus, Sink
from glmforge.observe.metric_table import MetricTable
from glmforge.observe.metrics import METRICS, Record
from glmforge.observe.prometheus import ExportedRun, Prometheus
from glmforge.observe.run import RunDirectory
from glmforge.observe.run_sinks import RunFiles
from glmforge.observe.tensorboard import TensorBoard
from glmforge.observe.tracking_process import TrackingProcess

STEP_S, WARM_UP, PER_BLOCK = 0.1, 40, 10
NUM_ROUTERS, NUM_SOURCES = 90, 8
NOT_OF_STEPS = ("evaluation", "needles", "benchmarks", "samples")
LISTS = [name for name, row in METRICS.items() if row.labels == ("router",)]
NUMBERS = [
    name for name, row in METRICS.items()
    if not row.labels and row.kind in ("value", "sum") and row.group not in NOT_OF_STEPS
]  # fmt: skip
CODE = [f"src/glmforge/observe/{name}.py" for name in (
    "bus", "background", "metric_table", "prometheus", "scrapes", "run_sinks", "record_files", "tensorboard",
    "tracking", "tracking_process",
)]  # fmt: skip
CASES = ("none", "files", "tensorboard", "wandb", "prometheus", "all", "dead", "full_disk", "slow")
SCRAPER = """
import sys, time, urllib.request
while True:
    began = time.monotonic()
    print(len(urllib.request.urlopen(sys.argv[1]).read()), flush=True)
    time.sleep(max(0.0, 1 - (time.monotonic() - began)))
"""


class Slow:
    """A sink that is never ready."""

    name = "slow"

    def open(self, step: int, tokens: int, table: MetricTable) -> None: ...

    def write(self, kind: Kind, record: Record) -> None:
        time.sleep(2)

    def close(self) -> None: ...


def record_of(step: int) -> dict[str, Any]:
    """What a step of a large run records."""
    values: dict[str, Any] = {name: 1.0 + step for name in NUMBERS}
    for name in ("source_tokens", "source_epochs", "source_loss"):
        values[name] = {f"source{number}": 1.0 for number in range(NUM_SOURCES)}
    if step % 10 == 0:
        values |= {name: [0.5] * NUM_ROUTERS for name in LISTS}
    return values | {"step": step, "lost_node_seconds": {"idle": 1.0}}


def worker() -> Callable[[], None]:
    """A function that takes about 100 ms of one core here, in calls of 1 ms as layers are."""
    torch.set_num_threads(1)
    matrix = torch.randn(256, 256)

    def multiply(times: int) -> None:
        for _ in range(times):
            torch.mm(matrix, matrix)

    multiply(2000)
    seconds = []
    for _ in range(20):
        began = time.perf_counter()
        multiply(200)
        seconds.append((time.perf_counter() - began) / 200)
    times = round(STEP_S / statistics.median(seconds))
    return lambda: multiply(times)


def measure(bus: MetricsBus, work: Callable[[], None], blocks: int) -> dict[str, float]:
    """Seconds of a step with `bus` and of one without sinks, and what their difference is made of."""
    plain = MetricsBus()
    for each in (bus, plain):
        each.open(0, 0)
    run_block(bus, work, 0, WARM_UP)  # connections are open, files begun, wandb is up
    differences, with_sinks, in_bus, others, step = [], [], [], 0.0, WARM_UP
    for block in range(blocks):
        seconds = {}
        for each in (bus, plain) if block % 2 else (plain, bus):
            cpu, own = time.process_time(), time.thread_time()
            seconds[each] = run_block(each, work, step, PER_BLOCK)
            step += PER_BLOCK
            if each is bus:
                others += (time.process_time() - cpu) - (time.thread_time() - own)
        of_steps = {each: statistics.fmean(whole for whole, _ in found) for each, found in seconds.items()}
        differences.append(of_steps[bus] - of_steps[plain])
        with_sinks.append(of_steps[bus])
        in_bus += [recording for _, recording in seconds[bus]]
    cost = statistics.fmean(differences)
    return {
        "step_seconds": statistics.fmean(with_sinks),
        "cost_seconds": cost,
        "cost_standard_error": statistics.stdev(differences) / len(differences) ** 0.5,
        "cost_seconds_median": statistics.median(differences),
        "cost_share_of_step": cost / (statistics.fmean(with_sinks) - cost),
        "bus_seconds": statistics.fmean(in_bus),
        "bus_seconds_max": max(in_bus),
        "other_threads_cpu_seconds": others / (blocks * PER_BLOCK),
        "sinks_left": len(bus.sinks),
    }


def run_block(bus: MetricsBus, work: Callable[[], None], before: int, steps: int) -> list[tuple[float, float]]:
    """Seconds of each step, and those of them in the bus."""
    found = []
    for step in range(before + 1, before + steps + 1):
        began = time.perf_counter()
        work()
        recorded = time.perf_counter()
        bus.record(record_of(step), step=step)
        bus.flush()
        ended = time.perf_counter()
        found.append((ended - began, ended - recorded))
    return found


@contextmanager
def full_disk() -> Iterator[Path]:
    """A directory without room: a small tmpfs filled up; where that cannot be mounted, a limit on files' sizes."""
    root = Path(tempfile.mkdtemp())
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(root)], capture_output=True)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        if mounted.returncode == 0:
            with (root / "filler").open("wb", buffering=0) as file:
                try:
                    while file.write(b"x" * 4096):
                        pass
                except OSError:
                    pass
        else:
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, limit[1]))
        yield root
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        if mounted.returncode == 0:
            subprocess.run(["umount", "--lazy", str(root)], check=True)
        shutil.rmtree(root, ignore_errors=True)


def sinks_in(root: Path) -> tuple[dict[str, Sink], Prometheus]:
    """All that a run may have, but the progress bar."""
    directory = RunDirectory(root)
    files = RunFiles(directory, [Kind.METRICS])
    exporter = Prometheus(PrometheusConfig(), directory.exporter, ExportedRun("run", "pretrain"), files.write)
    tracking = TrackingProcess(TrackingConfig(project="overhead", mode="offline"), root, "run", {})
    tensorboard = TensorBoard(directory.tensorboard)
    sinks: dict[str, Sink] = {"files": files, "prometheus": exporter}
    return sinks | {"tensorboard": Background(tensorboard), "wandb": Background(tracking)}, exporter


def scraped(exporter: Prometheus, stack: ExitStack) -> None:
    command = [sys.executable, "-c", SCRAPER, f"http://127.0.0.1:{exporter.port}/metrics"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    stack.callback(process.wait)
    stack.callback(process.kill)


def silent_clients(exporter: Prometheus, stack: ExitStack) -> None:
    for _ in range(8):
        stack.enter_context(socket.create_connection(("127.0.0.1", exporter.port or 0)))


class Connect:
    """A sink that, once the exporter before it listens, has clients connect to it."""

    name = "clients"

    def __init__(self, exporter: Prometheus, connect: Callable[[Prometheus, ExitStack], None], stack: ExitStack):
        self.open = lambda step, tokens, table: connect(exporter, stack)

    def write(self, kind: Kind, record: Record) -> None: ...

    def close(self) -> None: ...


def run_case(name: str, work: Callable[[], None], blocks: int) -> dict[str, float]:
    with ExitStack() as stack:
        if name == "none":
            return measure(MetricsBus(), work, blocks)
        if name == "full_disk":
            root = stack.enter_context(full_disk())
        else:
            root = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        every, exporter = sinks_in(root)
        sinks = list(every.values()) if name not in every else [every[one] for one in dict.fromkeys(("files", name))]
        if exporter in sinks:
            connect = silent_clients if name == "dead" else scraped
            sinks.append(Connect(exporter, connect, stack))
        if name == "slow":
            sinks.append(Background(Slow(), capacity=20, close_s=1.0))
        bus = MetricsBus(sinks)
        try:
            return measure(bus, work, blocks)
        finally:
            bus.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    os.environ["WANDB_SILENT"] = "true"
    work = worker()
    cases = {}
    for name in arguments.cases:
        cases[name] = run_case(name, work, arguments.blocks)
        print(name, {key: round(value, 6) for key, value in cases[name].items()}, flush=True)
    content = {
        "step_seconds": STEP_S,
        "steps_of_each": arguments.blocks * PER_BLOCK,
        "numbers_per_record": len(NUMBERS),
        "cases": cases,
    }
    print(write_result("observe_overhead", content, code=CODE, libraries=["wandb"], out=arguments.out))


if __name__ == "__main__":
    main()
