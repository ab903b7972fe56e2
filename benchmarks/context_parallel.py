"""Attention with each row shared by two ranks: gathered keys and values against Ulysses against one process.

    python benchmarks/context_parallel.py        # about a minute; writes benchmarks/results/context_parallel.json

Two gloo processes of one thread each run forward and backward of one attention layer on a row of 4096 tokens, in the
ratio of heads of GLM-4.5: once with one document, once with 24 of random length. The methods take turns, so that
whatever else the machine does falls on all of them alike; "one process" is the whole row on the first process while the
second one waits. `wall_ms` is the median (and the minimum) until both processes are done; `cpu_ms` the median processor
time of the busier process, which other work on the machine disturbs less; `speedup` the median over turns of "one
process"'s processor time over it, so 2.0 is the best there is.

Times of gloo on one machine say nothing of NVLink or InfiniBand, and those of the CPU's kernels nothing of CUDA's: here
segments that begin on another rank take two calls of the flash kernel. What carries over is `glm_4_5_mib_per_layer`:
what a rank receives for one layer's forward and backward at 131072 tokens in bfloat16, by the closed form of
`glmforge.parallel.context`. The run fails if the bytes that its own collectives moved are others than that form gives.
"""

import argparse
import itertools
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from record import write_result
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from glmforge.config.layout import Layout
from glmforge.kernels.attention import attention
from glmforge.kernels.choice import ChoosesKernels
from glmforge.kernels.documents import Documents
from glmforge.parallel.context import GatheredKeyValues, Ulysses, zigzag_index
from glmforge.parallel.world import World

CODE = ("src/glmforge/parallel/context.py", "src/glmforge/kernels")
CP, SEQ_LEN, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 2, 4096, 24, 2, 64
GLM_HEADS, GLM_KV_HEADS, GLM_HEAD_DIM, GLM_TOKENS, BF16_BYTES = 96, 8, 128, 131072, 2
SINGLE = "one process"
METHODS: dict[str, Callable[[Documents, World], Any]] = {
    "gather": lambda documents, world: GatheredKeyValues(documents, world, 1, SEQ_LEN, regather=False),
    "gather again": lambda documents, world: GatheredKeyValues(documents, world, 1, SEQ_LEN, regather=True),
    "ulysses": lambda documents, world: Ulysses(documents, world, 1, SEQ_LEN),
}


def elements_received(
    method: str, cp: int, num_heads: int, num_kv_heads: int, head_dim: int, tokens: int
) -> int | None:
    """By one rank for forward and backward of a layer; None where the method cannot run."""
    whole = 2 * num_kv_heads * head_dim * tokens
    match method:
        case "gather":
            return 2 * whole * (cp - 1) // cp
        case "gather again":
            return 3 * whole * (cp - 1) // cp
        case _ if num_kv_heads % cp:
            return None
        case _:
            return 2 * (2 * num_heads + 2 * num_kv_heads) * head_dim * tokens * (cp - 1) // cp**2


class ReceivedElements(TorchDispatchMode):
    """Counts what the functional collectives bring to this rank from others."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.name()
        if name.startswith(("_c10d_functional::all_gather", "_c10d_functional::all_to_all")):
            self.count += result.numel() * (CP - 1) // CP
        elif name.startswith("_c10d_functional::reduce_scatter"):
            self.count += result.numel() * (CP - 1)
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(rank_main, (Path(folder), arguments.rounds), nprocs=CP)
        cases = json.loads((Path(folder) / "result.json").read_text())
    result = {
        "cases": cases,
        "shape": {"tokens": SEQ_LEN, "heads": NUM_HEADS, "key/value heads": NUM_KV_HEADS, "head_dim": HEAD_DIM},
        "glm_4_5_mib_per_layer": {f"cp {cp}": glm_mib(cp) for cp in (2, 4, 8, 16)},
        "rounds": arguments.rounds,
        "dtype": "float32",
        "processes x threads": f"{CP} x 1",
    }
    print(write_result("context_parallel", result, code=CODE).read_text())


def glm_mib(cp: int) -> dict[str, float | None]:
    shape = (cp, GLM_HEADS, GLM_KV_HEADS, GLM_HEAD_DIM, GLM_TOKENS)
    elements = {method: elements_received(method, *shape) for method in METHODS}
    return {m: None if n is None else round(n * BF16_BYTES / 2**20, 1) for m, n in elements.items()}


def rank_main(rank: int, folder: Path, rounds: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=CP)
    world = World.join(Layout(cp=CP), torch.device("cpu"))
    draw = random.Random(0)
    borders = sorted({0, SEQ_LEN, *(draw.randrange(1, SEQ_LEN) for _ in range(23))})
    cases = {
        "one document": measure([SEQ_LEN], world, rounds),
        "24 documents": measure([b - a for a, b in itertools.pairwise(borders)], world, rounds),
    }
    if rank == 0:
        (folder / "result.json").write_text(json.dumps(cases))
    dist.barrier()
    dist.destroy_process_group()


def measure(lengths: list[int], world: World, rounds: int) -> dict[str, dict[str, float]]:
    """Times per method, after a first turn of each that checks results and bytes."""
    documents = Documents.from_lengths(lengths)
    generator = torch.Generator().manual_seed(0)
    heads = (NUM_HEADS, NUM_KV_HEADS, NUM_KV_HEADS)
    whole = [torch.randn(SEQ_LEN, h, HEAD_DIM, generator=generator) for h in heads]
    index = zigzag_index(1, SEQ_LEN, CP, world.axis_rank("cp"))
    local = [x[index] for x in whole]
    turns = {method: (make(documents, world), local) for method, make in METHODS.items()}
    check(turns, attention(*whole, documents)[index])
    if world.is_main:
        turns[SINGLE] = (lambda _, q, k, v: attention(q, k, v, documents), whole)
    wall: dict[str, list[float]] = {method: [] for method in (*METHODS, SINGLE)}
    processor: dict[str, list[float]] = {method: [] for method in wall}
    for _ in range(rounds):
        for method in wall:
            dist.barrier()
            start, processor_start = time.perf_counter(), time.process_time()
            if method in turns:
                forward_backward(*turns[method])
            busy = torch.tensor(time.process_time() - processor_start)
            dist.all_reduce(busy, dist.ReduceOp.MAX)
            wall[method].append(time.perf_counter() - start)
            processor[method].append(float(busy))
    return {method: summary(wall[method], processor[method], processor[SINGLE]) for method in wall}


def summary(wall: list[float], processor: list[float], single: list[float]) -> dict[str, float]:
    return {
        "wall_ms": round(1e3 * statistics.median(wall), 1),
        "wall_min_ms": round(1e3 * min(wall), 1),
        "cpu_ms": round(1e3 * statistics.median(processor), 1),
        "speedup": round(statistics.median(s / own for s, own in zip(single, processor, strict=True)), 2),
    }


def forward_backward(attend: Any, inputs: list[Tensor]) -> Tensor:
    qkv = [x.detach().requires_grad_() for x in inputs]
    output = attend(ChoosesKernels(), *qkv)
    output.backward(torch.ones_like(output))
    return output.detach()


def check(turns: dict[str, Any], expected: Tensor) -> None:
    for method, turn in turns.items():
        with ReceivedElements() as received:
            output = forward_backward(*turn)
        torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-4)
        promised = elements_received(method, CP, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, SEQ_LEN)
        if received.count != promised:
            raise RuntimeError(f"{method} received {received.count} elements, not {promised}")


if __name__ == "__main__":
    main()
