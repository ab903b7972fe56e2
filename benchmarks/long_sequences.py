"""Real training steps of long sequences on this machine: the most memory of each rank, against the dry run of the same.

    python benchmarks/long_sequences.py             # 5 minutes on two idle cores, 10 on busy ones
    python benchmarks/long_sequences.py --quick     # the shorter sequences; writes nothing
    python benchmarks/long_sequences.py --adapters  # 15 minutes, 13 GB: the case of adapters alone

The length is real and the model small: one dense and one MoE layer of width 128, two query heads of 32 that share keys
and values, 2,048 entries of vocabulary. A row is one document, so every token attends to all before it. Layers are
computed again in the backward pass, in fp32, for which a dry run takes the CPU's kernels. Each rank is a process of one
thread; with cp 2 both share the row and each layer's weights.

One case is of adapters: a single MoE layer with the 96 heads and the 128 experts of GLM-4.5-Air, and a hidden size and
experts that are narrow. Four ranks stand for two nodes: each pair has a copy of the frozen weights, half of the experts
on each rank (ep 2), and a row of its own; only gradients of the adapters of q, k, v and o are summed over both pairs.

`peak_bytes` are the most bytes of tensors that live at once, as the dry run counts them. `resident_bytes` is the
operating system's word for it: by how much the process grew, with kernels' workspaces and gloo's buffers, after a short
step has made it load what it loads once. For that, malloc gives every large block back at once; as it usually works, it
keeps freed ones and takes up half as much again. `seconds` are those of laying out the model and taking a step.
"""

import ctypes
import json
import resource
import time
from typing import Any, NamedTuple

from gloo_ranks import Ranks
from harness import arguments
from measured_layouts import watch_memory
from record import write_result
from small_runs import run_of

from glmforge.config.schema import RunConfig
from glmforge.dryrun.run import dry_run
from glmforge.observe.environment import process_rss_bytes

CODE = ("src/glmforge/dryrun", "src/glmforge/kernels", "src/glmforge/model", "src/glmforge/optim")
CODE += ("src/glmforge/parallel", "benchmarks/gloo_ranks.py", "benchmarks/measured_layouts.py")
TIME_LIMIT_S = 3600
WARM_UP_TOKENS = 2048
LARGE_BYTES = 65536
_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -3, -1  # of malloc.h
MODEL: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "moe_intermediate_size": 64,
    "vocab_size": 2048,
    "num_hidden_layers": 2,
    "first_k_dense_replace": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "use_qk_norm": True,
    "rope_theta": 1e7,
    "max_position_embeddings": 131072,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "num_nextn_predict_layers": 0,
    "routed_scaling_factor": 1.0,
    "eos_token_id": [1],
    "pad_token_id": 1,
}
"""Without an MTP layer, whose attention would cost half as much again."""


AIR = MODEL | {
    "hidden_size": 256,
    "num_hidden_layers": 1,
    "first_k_dense_replace": 0,
    "num_attention_heads": 96,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "n_routed_experts": 128,
    "num_experts_per_tok": 8,
}
LORA: dict[str, Any] = {
    "model": AIR,
    "lora": {"rank": 16},
    "init_from": "none",
    "parallel": {"dp_replicate": 2, "cp": 2, "ep": 2, "recompute": "full", "micro_batch_size": 1},
}


class Case(NamedTuple):
    name: str
    seq_len: int
    ranks: int
    is_quick: bool
    sections: dict[str, Any] = {}  # noqa: RUF012 - is not changed


CASES = (
    Case("16,384 tokens on one rank", 16384, 1, is_quick=True),
    Case("16,384 tokens on two", 16384, 2, is_quick=True),
    Case("131,072 tokens on two", 131072, 2, is_quick=False),
)
ADAPTERS = Case("adapters, 16,384 tokens, Air's heads and experts, on four", 16384, 4, is_quick=False, sections=LORA)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--quick", action="store_true", help="to try it: the shorter sequences")
    parser.add_argument("--adapters", action="store_true", help="the case of adapters alone")
    options = parser.parse_args()
    if options.adapters:
        row = compare(ADAPTERS)
        print(json.dumps(row), flush=True)
        write_result("long_adapters", row, code=(*CODE, "src/glmforge/adapt"), out=options.out)
        return
    rows = []
    for case in CASES:
        if case.is_quick or not options.quick:
            rows.append(compare(case))
            print(json.dumps(rows[-1]), flush=True)
    if not options.quick:
        write_result("long_sequences", {"cases": rows}, code=CODE, out=options.out)


def compare(case: Case) -> dict[str, Any]:
    """A step of the case on real ranks, and what a dry run says of the one that needs most."""
    config = long_run(case.seq_len, case)
    predicted = dry_run(config, case.ranks).peak
    with Ranks(case.ranks, TIME_LIMIT_S) as ranks:
        ranks.run(watch, long_run(WARM_UP_TOKENS, case))
        measured = ranks.run(watch, config)
    peaks = [rank["peak_bytes"] for rank in measured]
    return {
        "name": case.name,
        "seq_len": case.seq_len,
        "cp": config.parallel.cp,
        "ranks": measured,
        "peak_bytes": max(peaks),
        "dry_run_bytes": predicted,
        "ratio": round(predicted / max(peaks), 4),
        "resident_bytes": max(rank["resident_bytes"] for rank in measured),
        "seconds": max(rank["seconds"] for rank in measured),
    }


def long_run(seq_len: int, case: Case) -> RunConfig:
    """A step of one row for each copy of the model."""
    parallel = {"cp": case.ranks, "recompute": "full", "micro_batch_size": 1}
    copies = case.sections.get("parallel", parallel).get("dp_replicate", 1)
    phase = {"seq_len": seq_len, "batch_size": copies}
    return run_of(MODEL, phase, compute="fp32", **{"parallel": parallel, **case.sections})


def watch(config: RunConfig) -> dict[str, float]:
    """On a rank: take the step."""
    _give_blocks_back()
    before, started = process_rss_bytes(), time.perf_counter()
    peak = watch_memory(config)
    seconds = time.perf_counter() - started
    assert before is not None, "/proc tells what is resident"
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"peak_bytes": peak, "resident_bytes": most - before, "seconds": round(seconds, 1)}


def _give_blocks_back() -> None:
    libc = ctypes.CDLL("libc.so.6")
    for option in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
        assert libc.mallopt(option, LARGE_BYTES), "glibc's malloc can be told"


if __name__ == "__main__":
    main()
