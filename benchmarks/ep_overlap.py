"""Expert exchanges with the halves of a micro-batch in turn (`parallel.ep_overlap`) against the usual way.

    python benchmarks/ep_overlap.py        # about two minutes; writes benchmarks/results/ep_overlap.json

Two gloo processes of one thread each, with half of the experts each, run forward and backward passes of a small model;
both ways take turns, so that whatever else the machine does falls on both alike. Of an exchange `beside_ms` is the
time between its start and the moment when its rows are asked for, in which something else is computed, and `blocked_ms`
the time that is then still waited; both are sums over a pass. `ratio` is the median over turns of overlapped to usual.

Over gloo the exchange is itself work of the processor, so nothing is to be gained. `link` has the same with exchanges
that take as long as over a link of that many bytes per second, and no processor: what arrives earlier is held back.

`padding` has closed forms for shipped configurations: what an exchange of fixed size per peer would cost, whose sizes
the host need not ask for. `tenth_more_s` is the time on the network of a tenth more rows, `break_even_us` what one wait
would have to take for all waits of a step to cost as much; `needed` is the capacity, as a multiple of the mean, that
one exchange in a million exceeds if every choice of an expert is drawn evenly and alone, which is the least that a
router can need.
"""

import argparse
import json
import math
import statistics
import tempfile
import time
from pathlib import Path
from statistics import NormalDist
from typing import Any

import torch
import torch.distributed as dist
from record import write_result
from torch import Tensor

from glmforge import load_config
from glmforge.backend.native import NativeBackend
from glmforge.config import RunConfig
from glmforge.config.layout import resolve_layout
from glmforge.data.stream.batch import Batch
from glmforge.objectives.next_token import NextTokenObjective
from glmforge.parallel import collectives
from glmforge.parallel.world import World
from glmforge.plan.layout import stages_of_pp_rank
from glmforge.plan.work.step import micro_batch_share
from glmforge.plan.work.traffic import step_traffic

CODE = ("src/glmforge/parallel", "src/glmforge/model", "src/glmforge/plan/work")
RANKS, SEQ_LEN, NUM_ROWS = 2, 256, 8
LINK_BYTES_PER_S = 100e6
WAYS = {"usual": False, "overlapped": True}
LAYOUTS = {"pretrain_glm45_air_106b": 1024, "pretrain_glm45_355b": 8192}
RANKS_PER_NODE, NETWORK_BYTES_PER_S = 8, 50e9  # as docs/performance.md assumes
RARE = 1e-6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(rank_main, (Path(folder), args.turns), RANKS)
        measured = json.loads((Path(folder) / "result.json").read_text())
    padding = {name: padding_of(name, world_size) for name, world_size in LAYOUTS.items()}
    content = {"link_bytes_per_s": LINK_BYTES_PER_S, **measured, "padding": padding}
    print(json.dumps(content, indent=1))
    print(write_result("ep_overlap", content, code=CODE, out=args.out))


def run_config(*, overlap: bool) -> RunConfig:
    return load_config(f"""
name: ep_overlap
model: {{preset: tiny, hidden_size: 256, moe_intermediate_size: 256, n_routed_experts: 16, num_experts_per_tok: 4}}
data: {{tokenizer: none, sources: [{{name: text, path: none}}]}}
phases: [{{name: main, steps: 1, seq_len: {SEQ_LEN}, batch_size: {NUM_ROWS * RANKS}}}]
parallel: {{ep: {RANKS}, ep_overlap: {str(overlap).lower()}}}
precision: {{compute: fp32}}
""")


class Clock:
    """Stands in for the functional collectives: times every exchange, and holds its rows back as a link would."""

    def __init__(self) -> None:
        self._ops = collectives._ops
        self.link_bytes_per_s = math.inf
        self.beside = self.blocked = self._free_at = 0.0
        self._under_way: dict[int, tuple[float, float]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def all_to_all_single(self, x: Tensor, *args: Any) -> Tensor:
        received = self._ops.all_to_all_single(x, *args)
        now = time.perf_counter()
        self._free_at = max(now, self._free_at) + max(x.nbytes, received.nbytes) / 2 / self.link_bytes_per_s
        self._under_way[received.untyped_storage().data_ptr()] = now, self._free_at
        return received

    def wait_tensor(self, x: Tensor) -> Tensor:
        started_at, arrives_at = self._under_way.pop(x.untyped_storage().data_ptr(), (None, 0.0))
        asked_at = time.perf_counter()
        x = self._ops.wait_tensor(x)
        time.sleep(max(0.0, arrives_at - time.perf_counter()))
        if started_at is not None:
            self.beside += asked_at - started_at
            self.blocked += time.perf_counter() - asked_at
        return x

    def read(self) -> tuple[float, float]:
        """Seconds beside and blocked since the last call."""
        read = self.beside, self.blocked
        self.beside = self.blocked = 0.0
        return read


def rank_main(rank: int, folder: Path, turns: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    clock = Clock()
    collectives._ops = clock
    configs = {way: run_config(overlap=overlap) for way, overlap in WAYS.items()}
    world = World.join(resolve_layout(configs["usual"], RANKS), torch.device("cpu"))
    backends = {way: NativeBackend.build(config, world) for way, config in configs.items()}
    result = {}
    for name, rate in {"gloo": math.inf, "link": LINK_BYTES_PER_S}.items():
        clock.link_bytes_per_s = rate
        result[name] = compare(backends, configs["usual"], clock, turns)
    if world.is_main:
        (folder / "result.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


def compare(backends: dict[str, NativeBackend], config: RunConfig, clock: Clock, turns: int) -> dict[str, Any]:
    """Both ways in turn, after one pass of each that is not counted."""
    objective = NextTokenObjective(config.phases[0], config.model.num_nextn_predict_layers)
    ids = torch.randint(0, config.model.vocab_size, (NUM_ROWS, SEQ_LEN + 1))
    batch = Batch(ids[:, :-1], ids[:, 1:], ((SEQ_LEN,),) * NUM_ROWS, tuple(range(NUM_ROWS)), (0,) * NUM_ROWS)
    seen: dict[str, list[tuple[float, ...]]] = {way: [] for way in backends}
    for turn in range(turns + 1):
        for way, backend in backends.items():
            dist.barrier()
            clock.read()
            start = time.perf_counter()
            backend.accumulate(objective, [batch])
            backend.zero_grad()
            dist.barrier()
            if turn:
                seen[way].append((time.perf_counter() - start, *clock.read()))
    names = ("pass_ms", "beside_ms", "blocked_ms")
    medians = {
        way: {n: round(1e3 * statistics.median(v), 1) for n, v in zip(names, zip(*t, strict=True), strict=True)}
        for way, t in seen.items()
    }
    ratios = [over[0] / usual[0] for usual, over in zip(seen["usual"], seen["overlapped"], strict=True)]
    return medians | {"ratio": round(statistics.median(ratios), 3)}


def padding_of(name: str, world_size: int) -> dict[str, float]:
    """Of a rank in the middle of the pipeline and a step of the first phase."""
    config = load_config(f"configs/{name}.yaml")
    layout = resolve_layout(config, world_size)
    pp_rank = 1
    (exchanges,) = (t for t in step_traffic(config, layout, pp_rank) if t.axis == "ep")
    num_moe = sum(stage.num_moe + stage.num_mtp for stage in stages_of_pp_rank(config, layout, pp_rank))
    rows = micro_batch_share(config, layout).own * config.model.num_experts_per_tok
    mean, share = rows / layout.ep, 1 / layout.ep
    far = 1 - min(layout.ep, RANKS_PER_NODE) / layout.ep
    waits = num_moe * layout.num_micro_batches(config.phases[0])
    tenth_more_s = 0.1 * exchanges.bytes * far / NETWORK_BYTES_PER_S
    deviations = NormalDist().inv_cdf(1 - RARE / layout.ep)
    return {
        "ep_gb": round(exchanges.bytes / 1e9, 1),
        "waits": waits,
        "tenth_more_s": round(tenth_more_s, 2),
        "break_even_us": round(1e6 * tenth_more_s / waits),
        "rows_per_peer": round(mean),
        "needed": round(1 + deviations * math.sqrt(mean * (1 - share)) / mean, 2),
    }


if __name__ == "__main__":
    main()
