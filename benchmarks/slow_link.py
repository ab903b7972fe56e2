"""Saving adapters and evaluating over two nodes with a slow link, beside the usual ways.

    python benchmarks/slow_link.py      # some three minutes; writes benchmarks/results/slow_link.json

Four ranks on two hosts in network namespaces (`tests/helpers/linked_hosts.py`: root is needed), 100 Mbit/s each way
between them, some 30 MB of adapters and moments, which no rank holds alone. Two layouts: a copy of the model per host,
and one over both.

A save, until all that is written has been forced to the disks and every rank is ready to go on:
    ours        each rank its own slices, on its host's disk, hashed and read back; no communication
    DCP         the way of checkpoints of whole models (`CheckpointSaver`), hashed and read back
    gathered    every tensor is made whole on all ranks (`full_tensor`), rank 0 writes one file, neither hashed nor read
                back

An evaluation of held-out text, a batch to each rank at a time:
    ours        one all-reduce at the end
    per batch   an all-reduce after each batch
    per token   after each batch rank 0 gets the losses of all tokens, as where metrics are computed there

Expected before the first run: what is gathered takes at least 3/4 of the state through each direction of the link where
one copy lies over both hosts, 2 s, against .2 to .3 s for ours (6 to 10 times); within a host's copy no link is in the
way, and writing on one rank instead of two costs at most twice. A small all-reduce is some milliseconds of messages:
5 % of these small batches at most, since bandwidth is limited here and latency is not. Gathering weights for each batch
over the link is what makes an evaluation slow: 3 times and more.

The ways take turns. Times are of the slowest rank, the median of the turns; bytes are those of the link, both ways.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from record import ROOT, write_result
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor

sys.path.append(str(ROOT / "tests"))

from glmforge.checkpoint.adapter.base import base_weights
from glmforge.checkpoint.adapter.saver import AdapterSaver
from glmforge.checkpoint.adapter.write import AdapterInfo
from glmforge.checkpoint.policy.saver import CheckpointSaver
from glmforge.config import RunConfig
from glmforge.config.checkpoint import CheckpointConfig
from glmforge.data.stream.batch import Batch
from glmforge.data.tokens.shards import TokenShard
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.evaluate import bits_per_byte
from glmforge.evaluate.bits_per_byte import HeldOut, evaluate_held_out
from glmforge.parallel.model import ParallelModel
from glmforge.recipes.train import train
from glmforge.runtime.durable import fsync_file
from glmforge.training.step import StepResult
from glmforge.training.trainer import Hook, Trainer
from helpers.checkpoints import make_meta
from helpers.distributed import run_ranks
from helpers.linked_hosts import linked_hosts, read_link_bytes
from helpers.linked_runs import ONE_COPY, ONE_COPY_PER_HOST, linked_run, write_base
from helpers.tiny_data import TinyData, make_tiny_data

RATE = "100mbit"
LAYOUTS = {"a copy per host": ONE_COPY_PER_HOST, "one copy over both": ONE_COPY}
LORA = {"rank": 96, "targets": ["all-linear"]}

Way = Callable[[int], None]


class MeasureHook(Hook):
    """After the run's only step each way is taken `turns` times."""

    name = "measure"

    def __init__(self, folder: Path, turns: int) -> None:
        self.folder, self.turns = folder, turns
        self.found: dict[str, Any] = {}

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        tensors = trained_tensors(trainer)
        self.found = {
            "state_bytes": sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()),
            "save": take_turns(ways_to_save(trainer.config, tensors, self.folder), self.turns),
            "evaluate": take_turns(ways_to_evaluate(trainer), self.turns),
        }


def measure(config: RunConfig, folder: Path, turns: int) -> dict[str, Any]:
    hook = MeasureHook(folder, turns)
    train(config, [hook])
    return hook.found


def trained_tensors(trainer: Trainer) -> dict[str, Tensor]:
    """Adapters and their moments."""
    table = trainer.backend.table
    states = trainer.backend.state_tensors()
    return {n: t for n, t in states.items() if not n.startswith("model.") or table[n.removeprefix("model.")].lr_scale}


def ways_to_save(config: RunConfig, tensors: Mapping[str, Tensor], folder: Path) -> dict[str, Way]:
    settings = CheckpointConfig(keep_last=1, background=False)
    on_disks = settings.model_copy(update={"local_dir": config.checkpoint.local_dir})
    assert config.lora is not None
    info = AdapterInfo(config.model, config.lora, "full", base_weights(Path(str(config.init_from))))
    ours = AdapterSaver(folder / "ours", on_disks, tensors, info, run_name="ours")
    dcp = CheckpointSaver(folder / "dcp", settings, run_name="dcp")

    def save_gathered(turn: int) -> None:
        whole = {n: t.full_tensor() if isinstance(t, DTensor) else t for n, t in tensors.items()}
        if dist.get_rank() == 0:
            file = folder / f"{turn}.safetensors"
            save_file({name: tensor.contiguous() for name, tensor in whole.items()}, file)
            fsync_file(file)
        dist.barrier()  # nobody goes on before it is there

    return {
        "ours": lambda turn: ours.save(turn, tensors, make_meta(turn), durable=True),
        "DCP": lambda turn: dcp.save(turn, tensors, make_meta(turn), durable=True),
        "gathered": save_gathered,
    }


def ways_to_evaluate(trainer: Trainer) -> dict[str, Way]:
    data = trainer.config.data
    arguments: dict[str, Any] = {
        "held_out": [HeldOut(source.name, TokenShard(Path(source.path))) for source in data.held_out],
        "tokenizer": Tokenizer.load(data.tokenizer),
        "seq_len": trainer.config.phases[0].seq_len,
        "subset": None,
    }
    score = bits_per_byte._score

    def evaluate(after_batch: Callable[[Tensor, Batch], None]) -> None:
        def score_and_tell(model: ParallelModel, batch: Batch, num_bytes: int) -> Tensor:
            sums = score(model, batch, num_bytes)
            after_batch(sums, batch)
            return sums

        bits_per_byte._score = score_and_tell
        try:
            with trainer.backend.evaluating() as model:
                evaluate_held_out(model, **arguments)
        finally:
            bits_per_byte._score = score

    def gather_losses(sums: Tensor, batch: Batch) -> None:
        mine = torch.zeros(batch.labels_BS.numel())
        parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())] if dist.get_rank() == 0 else None
        dist.gather(mine, parts)

    return {
        "ours": lambda turn: evaluate(lambda sums, batch: None),
        "per batch": lambda turn: evaluate(lambda sums, batch: dist.all_reduce(sums.clone())),
        "per token": lambda turn: evaluate(gather_losses),
    }


def take_turns(ways: Mapping[str, Way], turns: int) -> dict[str, dict[str, Any]]:
    """Seconds of the slowest rank and bytes over the link, turn by turn; the first turn is not counted."""
    seconds, sent = defaultdict[str, list[float]](list), defaultdict[str, list[int]](list)
    names = list(ways)
    for turn in range(turns + 1):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            dist.barrier()
            before, started = sum(read_link_bytes()), time.perf_counter()
            ways[name](turn)
            elapsed, bytes_sent = torch.tensor(time.perf_counter() - started), sum(read_link_bytes()) - before
            dist.all_reduce(elapsed, dist.ReduceOp.MAX)
            if turn:
                seconds[name].append(round(float(elapsed), 4))
                sent[name].append(bytes_sent)
    return {
        name: {
            "seconds": statistics.median(seconds[name]),
            "link_bytes": statistics.median(sent[name]),
            "all_seconds": seconds[name],
        }
        for name in names
    }


def config_of(data: TinyData, directory: Path, base: Path, parallel: dict[str, Any], disk: Path) -> RunConfig:
    return linked_run(
        data,
        directory,
        base,
        lora=LORA,
        parallel=parallel,
        phases=[{"name": "main", "steps": 1, "seq_len": 64, "batch_size": 8}],
        checkpoint={"save_final": False, "local_dir": str(disk)},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=None, help="on the disk to write to")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="slow-link-") as name:
        folder = Path(name)
        for part in ("data", "hosts", *(f"saves-{index}" for index in range(len(LAYOUTS)))):
            (folder / part).mkdir()
        data = make_tiny_data(folder / "data")
        base = write_base(folder / "base", data)
        found = {}
        with linked_hosts(folder / "hosts", RATE) as hosts:
            for index, (layout, parallel) in enumerate(LAYOUTS.items()):
                config = config_of(data, folder / f"run-{index}", base, parallel, hosts[0].disk_seen)
                saves = folder / f"saves-{index}"
                found[layout] = run_ranks(
                    measure, 4, config, saves, arguments.turns, hosts=hosts, init_group=False, timeout_s=600
                )[0]
    ratios = {
        layout: {
            what: {name: round(way["seconds"] / ways["ours"]["seconds"], 2) for name, way in ways.items()}
            for what, ways in (("save", result["save"]), ("evaluate", result["evaluate"]))
        }
        for layout, result in found.items()
    }
    per_host, over_both = (result["evaluate"]["ours"]["seconds"] for result in found.values())
    content = {
        "link": RATE,
        "ranks": 4,
        "layouts": found,
        "ratios": ratios,
        "evaluation_over_both_to_per_host": round(over_both / per_host, 2),
    }
    write_result(
        "slow_link", content, code=["src/glmforge/checkpoint/adapter", "src/glmforge/evaluate/bits_per_byte.py"]
    )
    print(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
