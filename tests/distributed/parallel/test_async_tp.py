"""torch's pass for asynchronous tensor parallelism finds its patterns in the compiled parts, and changes no gradient.

Its operations are for CUDA; here they gather, multiply and scatter as plain ones do.
"""

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes import post_grad
from torch._inductor.fx_passes.micro_pipeline_tp import micro_pipeline_tp_pass
from torch.distributed import _symmetric_memory as symmetric_memory

from glmforge import load_config
from glmforge.backend.native import NativeBackend
from glmforge.config.layout import Layout, resolve_layout
from glmforge.config.schema import RunConfig
from glmforge.data.stream.batch import Batch
from glmforge.errors import ConfigError
from glmforge.objectives.next_token import NextTokenObjective
from glmforge.parallel import async_tp, build
from glmforge.parallel import compile as module
from glmforge.parallel.world import World, join_world
from helpers.distributed import run_ranks

SEQ_LEN, NUM_ROWS, NUM_LAYERS = 32, 2, 2
OPTIONS = {"_micro_pipeline_tp": True}

GATHER, SCATTER = "fused_all_gather_matmul", "fused_matmul_reduce_scatter"
"""The operations that the pass puts in the place of its patterns."""

Fused = tuple[str, str, str, int]

EVERYWHERE = {
    ("DecoderLayer.after_attention", "fw", SCATTER, 1),
    ("DecoderLayer.after_attention", "bw", GATHER, 1),
    ("SwiGLU.forward", "fw", GATHER, 2),
    ("SwiGLU.forward", "fw", SCATTER, 1),
    ("SwiGLU.forward", "bw", GATHER, 1),
}
QKV = ("DecoderLayer.before_attention", "fw", GATHER, 3)


def run_config(*, attention_bias: bool, is_async: bool) -> RunConfig:
    return load_config(f"""
name: async
model: {{preset: tiny, num_hidden_layers: {NUM_LAYERS}, num_nextn_predict_layers: 0, attention_bias: {attention_bias}}}
data: {{tokenizer: none, sources: [{{name: text, path: none}}]}}
phases: [{{name: main, steps: 1, seq_len: {SEQ_LEN}, batch_size: {NUM_ROWS}}}]
optim: {{lr: 1e-2, warmup_steps: 0}}
parallel: {{compile: true, tp: 2, async_tp: {is_async}}}
precision: {{compute: fp32}}
""")


class Fusing:
    """In the place of inductor: the pass alone, on the graphs that inductor would give it, which then run as they are.

    `counts`: how often each operation, with so many matrices, stands in the graphs of each part, forward and backward.
    """

    def __init__(self) -> None:
        self.counts: Counter[Fused] = Counter()

    def compiled(self, function: Callable[..., Any], *, options: dict[str, Any] | None = None) -> Callable[..., Any]:
        if options is None:
            return function
        assert options == OPTIONS
        owner = type(function.__self__).__name__  # type: ignore[attr-defined]
        compilers = {
            f"{way}_compiler": functools.partial(self._fuse, f"{owner}.{function.__name__}", way)
            for way in ("fw", "bw")
        }
        backend = aot_autograd(
            **compilers,
            decompositions=select_decomp_table(),
            partition_fn=min_cut_rematerialization_partition,
        )
        return torch.compile(function, fullgraph=True, backend=backend)

    def _fuse(self, part: str, way: str, module: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        micro_pipeline_tp_pass(module.graph)
        module.graph.eliminate_dead_code()
        module.recompile()
        for node in module.graph.nodes:
            if node.target is torch.ops.symm_mem.fused_all_gather_matmul.default:
                self.counts[part, way, GATHER, len(node.args[1])] += 1
            elif node.target is torch.ops.symm_mem.fused_matmul_reduce_scatter.default:
                self.counts[part, way, SCATTER, 1] += 1
        return make_boxed_func(module.forward)


def gradients(config: RunConfig) -> dict[str, Tensor]:
    with join_world(resolve_layout(config, dist.get_world_size()), timeout_s=60) as world:
        backend = NativeBackend.build(config, world)
        objective = NextTokenObjective(config.phases[0], 0)
        ids = torch.randint(0, config.model.vocab_size, (NUM_ROWS, SEQ_LEN + 1), generator=torch.manual_seed(0))
        batch = Batch(ids[:, :-1], ids[:, 1:], ((SEQ_LEN,),) * NUM_ROWS, tuple(range(NUM_ROWS)), (0,) * NUM_ROWS)
        backend.accumulate(objective, [batch])
        return {name: local(parameter.grad) for name, parameter in backend.model.named_parameters()}


def local(gradient: Any) -> Tensor:
    return gradient.to_local() if hasattr(gradient, "to_local") else gradient


def rank_compares() -> list[tuple[dict[Fused, int], float]]:
    """Without biases and with: what was fused, and the largest relative difference of a gradient from the plain one."""
    build.async_tp_options = lambda world: OPTIONS  # type: ignore[assignment]
    library = torch.library.Library("symm_mem", "IMPL")
    library.impl(GATHER, symmetric_memory._fused_all_gather_matmul_fallback, "CPU")
    library.impl(SCATTER, symmetric_memory._fused_matmul_reduce_scatter_fallback, "CPU")
    return [compare(attention_bias) for attention_bias in (False, True)]


def compare(attention_bias: bool) -> tuple[dict[Fused, int], float]:
    module._compiled = lambda function, *, options=None: function  # type: ignore[assignment]
    expected = gradients(run_config(attention_bias=attention_bias, is_async=False))
    fusing = Fusing()
    module._compiled = fusing.compiled  # type: ignore[assignment]
    with symmetric_memory._test_mode(), mock.patch("torch.distributed.is_nccl_available", return_value=True):
        actual = gradients(run_config(attention_bias=attention_bias, is_async=True))
    assert actual.keys() == expected.keys()
    errors = [(actual[name] - expected[name]).norm() / expected[name].norm().clamp(min=1e-30) for name in expected]
    return dict(fusing.counts), float(max(errors))


@pytest.mark.full
def test_the_pass_finds_its_patterns() -> None:
    for results in run_ranks(rank_compares, 2, timeout_s=300):
        for (fused, error), expected in zip(results, (EVERYWHERE | {QKV}, EVERYWHERE), strict=True):
            assert fused == dict.fromkeys(expected, NUM_LAYERS)
            # Sums of two ranks' parts in another order.
            assert error < 1e-5


@pytest.mark.filterwarnings("ignore:dynamo_pgo")
def test_inductor_takes_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = []
    monkeypatch.setattr(post_grad, "micro_pipeline_tp_pass", passes.append)

    def run(options: dict[str, Any] | None) -> int:
        passes.clear()
        torch.compiler.reset()
        x = torch.ones(4, 4, requires_grad=True)
        with torch._inductor.config.patch(force_disable_caches=True):
            module._compiled(lambda x: x @ x, options=options)(x).sum().backward()
        return len(passes)

    assert run(OPTIONS) == 2, "forward and backward"
    assert run(None) == 0


@pytest.mark.parametrize(
    ("device", "ranks_per_node", "message"),
    [("cpu", 8, "needs GPUs"), ("cuda", 4, "tp = 8 ranks must lie on one node")],
)
def test_ranks_that_cannot_reach_each_other_are_refused(device: str, ranks_per_node: int, message: str) -> None:
    world = World(0, 8, torch.device(device), Layout(tp=8))
    with pytest.raises(ConfigError, match=message):
        async_tp._check(world, ranks_per_node)
