"""Compiled layers have no graph breaks, and nothing is compiled after the first step, whatever the routers choose."""

import functools
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._dynamo.utils import counters, get_compilation_metrics

from glmforge import load_config
from glmforge.backend.native import NativeBackend
from glmforge.config.layout import resolve_layout
from glmforge.data.stream.batch import Batch
from glmforge.objectives.next_token import NextTokenObjective
from glmforge.parallel import compile as module
from glmforge.parallel.world import join_world
from glmforge.training.step import train_step
from helpers.distributed import run_ranks

SEQ_LEN, NUM_ROWS, MICRO_BATCH, NUM_STEPS = 64, 4, 2, 3
NUM_LAYERS, NUM_MTP = 3, 1
LENGTHS = [((64,), (20, 44)), ((30, 34), (10, 20, 34)), ((1, 63), (64,))]
"""Of a micro-batch's documents, step by step."""

PARTS = {"before_attention", "after_attention", "combine", "forward", "swiglu"}
VARIANTS = {
    "before_attention": 2,  # of a trunk layer, of a MTP layer
    "after_attention": 2,
    "combine": 1,
    "swiglu": 1,  # for any number of rows
    "forward": 4,  # of the router, the shared expert, the dense layer's MLP and the final norm
}


def run_config(ranks: int, **parallel: object) -> Any:
    fields = ", ".join(f"{name}: {value}" for name, value in parallel.items())
    return load_config(f"""
name: compiled
model: {{preset: tiny, num_hidden_layers: {NUM_LAYERS}, num_nextn_predict_layers: {NUM_MTP}}}
data: {{tokenizer: none, sources: [{{name: text, path: none}}]}}
phases: [{{name: main, steps: {NUM_STEPS}, seq_len: {SEQ_LEN}, batch_size: {NUM_ROWS * ranks}}}]
optim: {{lr: 1e-2, warmup_steps: 0}}
parallel: {{compile: true, micro_batch_size: {MICRO_BATCH}, {fields}}}
precision: {{compute: fp32}}
""")


def rank_steps(parallel: dict[str, object]) -> tuple[dict[str, int], list[int], list[str]]:
    """Graph breaks, what had been compiled after each step, and the names of all that was."""
    # Which graphs there are does not depend on who compiles them; inductor would take minutes.
    module._compiled = functools.partial(torch.compile, fullgraph=True, backend="aot_eager")  # type: ignore[assignment]
    config = run_config(dist.get_world_size(), **parallel)
    compiled = []
    with join_world(resolve_layout(config, dist.get_world_size()), timeout_s=60) as world:
        backend = NativeBackend.build(config, world)
        objective = NextTokenObjective(config.phases[0], NUM_MTP)
        generator = torch.Generator().manual_seed(world.rank)
        for lengths in LENGTHS:
            ids = torch.randint(0, config.model.vocab_size, (NUM_ROWS, SEQ_LEN + 1), generator=generator)
            batch = Batch(ids[:, :-1], ids[:, 1:], lengths * 2, tuple(range(NUM_ROWS)), (0,) * NUM_ROWS)
            train_step(
                backend, objective, batch.micro_batches(MICRO_BATCH), lr=1e-2, grad_clip=1.0, router_bias_rate=0.1
            )
            compiled.append(len(_compilations()))
    return dict(counters["graph_break"]), compiled, _compilations()


def _compilations() -> list[str]:
    """The functions that dynamo traced; what it notes of backward passes has no name."""
    return [metrics.co_name for metrics in get_compilation_metrics() if metrics.co_name is not None]


@pytest.mark.parametrize(
    ("ranks", "parallel"),
    [
        (1, {}),
        pytest.param(2, {"ep": 2, "recompute": "full"}, marks=pytest.mark.full),
        (2, {"tp": 2, "ep": 2, "recompute": "selective"}),
        pytest.param(2, {"ep": 2}, marks=pytest.mark.full),
        pytest.param(2, {"ep": 2, "ep_overlap": True, "recompute": "full"}, marks=pytest.mark.full),
    ],
    ids=str,
)
def test_no_graph_breaks_and_no_recompilation(ranks: int, parallel: dict[str, object]) -> None:
    for breaks, compiled, names in run_ranks(rank_steps, ranks, parallel, timeout_s=300):
        assert breaks == {}
        assert compiled == compiled[:1] * NUM_STEPS, names
        assert set(names) == PARTS
        assert {name: names.count(name) for name in PARTS} == VARIANTS
