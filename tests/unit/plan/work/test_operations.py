"""The operations of a step are those that the trainer runs: every matmul, shape by shape, and attention."""

from collections import Counter
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from glmforge.config import load_config
from glmforge.config.layout import resolve_layout
from glmforge.config.parameters import parameter_table
from glmforge.config.schema import RunConfig
from glmforge.data.stream.batch import Batch
from glmforge.dryrun.observe import StandIns, observe_step
from glmforge.errors import ConfigError
from glmforge.kernels.target import kernels_of
from glmforge.parallel.world import World
from glmforge.plan.counts.flops import train_flops_per_token
from glmforge.plan.work.operations import Operation, Share, layer
from glmforge.plan.work.step import step_operations

Shapes = Counter[tuple[tuple[int, ...], int, int]]
"""(m, n, k) in order of size, groups, bytes of an element -> how often. A batch counts as its single matrices: how
many Muon takes at a time is no matter of arithmetic."""

RUN = """
name: run
model: {preset: tiny, num_hidden_layers: 2}
data: {tokenizer: none, sources: [{name: random, path: none}]}
phases: [{name: main, steps: 1, seq_len: 64, batch_size: 4, aux_loss_weight: 0}]
parallel: {micro_batch_size: 2}
"""


FROZEN = {
    "head": "[{match: lm_head.weight, lr_scale: 0}]",
    "experts and router": "[{match: '*experts*', lr_scale: 0}, {match: '*mlp.gate.weight', lr_scale: 0}]",
    "the lower part": "[{match: '*embed_tokens*', lr_scale: 0}, {match: 'model.layers.[01].*', lr_scale: 0}]",
    "all but queries": "[{match: '*q_proj*', lr_scale: 1}, {match: '*', lr_scale: 0}]",
    "all but an output projection": "[{match: '*.1.self_attn.o_proj*', lr_scale: 1}, {match: '*', lr_scale: 0}]",
    "all but the head": "[{match: lm_head.weight, lr_scale: 1}, {match: '*', lr_scale: 0}]",
    "all but MTP": "[{match: 'model.layers.2.*', lr_scale: 1}, {match: '*', lr_scale: 0}]",
}
"""`optim.rules` of a model with two layers and an MTP layer."""
QUICK = ("head", "experts and router", "all but an output projection")


def run(*overrides: str) -> RunConfig:
    return load_config(RUN, overrides)


def operations(config: RunConfig, **options: Any) -> list[Operation]:
    return step_operations(config, resolve_layout(config, 1), **options)


class Recorder(TorchDispatchMode):
    """Notes the shape of every matmul and the queries of every attention."""

    def __init__(self) -> None:
        super().__init__()
        self.matmuls: Shapes = Counter()
        self.attentions: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().partition(".")[0].removeprefix("aten::")
        if name in ("mm", "addmm", "bmm", "baddbmm", "_grouped_mm"):
            left, right = args[1:3] if name in ("addmm", "baddbmm") else args[:2]
            self._note(left, right, name == "_grouped_mm", args, kwargs or {})
        elif "_varlen_attn" in name:
            self.attentions["backward" if "backward" in name else "forward"] += 1
        return func(*args, **(kwargs or {}))

    def _note(self, left: Any, right: Any, is_grouped: bool, args: Any, kwargs: Any) -> None:
        (m, k), n = left.shape[-2:], right.shape[-1]
        groups = len(kwargs["offs"] if "offs" in kwargs else args[2]) if is_grouped else 1
        batch = len(left) if left.dim() == 3 else 1
        self.matmuls[tuple(sorted((m, n, k))), groups, left.element_size()] += batch


def executed(config: RunConfig) -> Recorder:
    """What one step of the trainer runs with a GPU's kernels, on tensors without memory."""
    phase, recorder = config.phases[0], Recorder()
    ids_BS = torch.zeros(phase.batch_size, phase.seq_len, dtype=torch.int64)
    number = phase.batch_size

    def mode() -> ExitStack:
        stack = ExitStack()
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(recorder)
        return stack

    def batch() -> Batch:
        return Batch(ids_BS, ids_BS.clone(), ((phase.seq_len,),) * number, (0,) * number, (0,) * number)

    world = World(0, 1, torch.device("cpu"), resolve_layout(config, 1))
    stand_ins = StandIns(mode=mode, to_host=lambda numbers: [1.0] + [0.0] * (len(numbers) - 1))
    with kernels_of("cuda"):
        observe_step(config, world, batch, stand_ins)
    return recorder


def predicted(config: RunConfig) -> Shapes:
    shapes: Shapes = Counter()
    for operation in operations(config):
        for _, work in operation.passes:
            for matmul in work.matmuls:
                assert operation.times == int(operation.times)
                batch = matmul.groups if operation.name.startswith("Muon") else 1
                dims = tuple(sorted((matmul.m // batch, matmul.n, matmul.k)))
                shapes[dims, matmul.groups // batch, matmul.itemsize] += int(operation.times) * batch
    return shapes


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("model.use_qk_norm=false", "model.first_k_dense_replace=0", "model.num_nextn_predict_layers=0"),
        ("parallel.recompute=full",),
        ("parallel.recompute=selective", "optim.lm_head=adamw"),
        ("phases.0.mtp_loss_weight=0", "parallel.micro_batch_size=4"),
        *(
            (f"optim.rules={rules}",)
            if name in QUICK
            else pytest.param((f"optim.rules={rules}",), marks=pytest.mark.full)
            for name, rules in FROZEN.items()
        ),
        (f"optim.rules={FROZEN['the lower part']}", "parallel.recompute=full"),
    ],
    ids=["plain", "no MTP", "recompute", "selective", "no MTP loss", *FROZEN, "the lower part, recompute"],
)
def test_matmuls_are_those_that_a_step_runs(overrides: tuple[str, ...]) -> None:
    config = run(*overrides)
    assert executed(config).matmuls == predicted(config)


def test_attention_runs_once_per_layer_and_micro_batch() -> None:
    config = run("parallel.recompute=full")
    layers = config.model.num_hidden_layers + config.model.num_nextn_predict_layers
    assert sum(o.times for o in operations(config) if o.name == "attention") == 2 * layers
    assert executed(config).attentions == {"forward": 2 * 2 * layers, "backward": 2 * layers}


@pytest.mark.parametrize("model", ["glm45_air_106b", "glm45_355b", "tiny"])
@pytest.mark.parametrize("mean_attended", [None, 32])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_model_flops_are_the_closed_form_of_utilisation(model: str, mean_attended: int | None, recompute: str) -> None:
    config = run(f"model={model}", f"parallel.recompute={recompute}")
    found = operations(config, mean_attended=mean_attended)
    per_token = train_flops_per_token(config.model, mean_attended or 64)
    assert sum(operation.model_flops for operation in found) == per_token * 4 * 64


@pytest.mark.parametrize("rules", FROZEN.values(), ids=FROZEN)
@pytest.mark.parametrize("overrides", [(), ("phases.0.mtp_loss_weight=0",)], ids=["MTP", "no MTP loss"])
def test_model_flops_are_the_closed_form_where_rules_freeze(rules: str, overrides: tuple[str, ...]) -> None:
    config = run(f"optim.rules={rules}", *overrides)
    with_mtp = config.phases[0].mtp_loss_weight > 0
    per_token = train_flops_per_token(config.model, 64, with_mtp, optim=config.optim)
    assert sum(operation.model_flops for operation in operations(config)) == per_token * 4 * 64
    assert per_token < train_flops_per_token(config.model, 64, with_mtp)


def test_two_operations_of_air_by_hand() -> None:
    """8,192 tokens of GLM-4.5-Air in rows of 4,096, on a rank with 16 experts.

    Its experts get 8 x 8,192 = 65,536 rows of 4,096, each times a matrix of 2 x 1,408 = 2,816 by 4,096:

        FLOPs forward   2 x 65,536 x 2,816 x 4,096                   = 1.512e12, twice that backward
        bytes forward   65,536 x 4,096 x 2 = 536,870,912 of rows, 16 x 2,816 x 4,096 x 2 = 369,098,752 of weights,
                        65,536 x 2,816 x 2 = 369,098,752 of results
        backward        rows and weights are read, and their gradients written; the results' gradients are read

    Attention: a token sees 2,048 others in the mean, each for 96 heads x 128 x 2 products of 2 FLOPs:

        FLOPs forward   8,192 x 2,048 x 12,288 x 2 x 2               = 8.246e11, five products instead of two backward
        bytes forward   queries and outputs 2 x 8,192 x 12,288 x 2 = 402,653,184; keys and values
                        2 x 8,192 x 1,024 x 2 = 33,554,432; fp32 log-sums 8,192 x 96 x 4 = 3,145,728
        backward        queries, outputs and the gradients of both; keys, values and theirs; log-sums
    """
    share = Share(tokens=8192, attended=8192 * 4096, ep=8)
    found = {o.name: o for o in layer(run("model=glm45_air_106b").model, share, is_moe=True)}
    experts = found["experts: gate and up"]
    assert experts.forward.flops == 1_511_828_488_192
    assert experts.backward.flops == 2 * 1_511_828_488_192
    assert experts.forward.bytes == 536_870_912 + 369_098_752 + 369_098_752
    assert experts.backward.bytes == 2 * (536_870_912 + 369_098_752) + 369_098_752
    attention = found["attention"]
    assert attention.forward.flops == 824_633_720_832
    assert attention.backward.flops == 824_633_720_832 * 5 // 2
    assert attention.forward.bytes == 402_653_184 + 33_554_432 + 3_145_728
    assert attention.backward.bytes == 2 * (402_653_184 + 33_554_432) + 3_145_728


def test_fp32_is_refused() -> None:
    with pytest.raises(ConfigError, match="bf16"):
        operations(run("precision.compute=fp32"))


def test_bytes_of_an_update() -> None:
    """Per parameter: the norm reads 4 bytes and clipping reads and writes them. AdamW reads weight, gradient and both
    moments and writes all but the gradient, 28 bytes. Muon reads gradient, momentum and weight, writes the latter two,
    20 bytes, and writes and reads directions of 2. Casts to bf16 read 4 and write 2; without embedding and routers.
    Elastic weight consolidation reads weight, Fisher information, earlier weight and gradient, writes the last."""
    config = run("parallel.recompute=full", "regularization.ewc={fisher: none}")
    found = operations(config)
    moved: Counter[str] = Counter()
    for operation in found:
        moved[operation.name] += int(operation.bytes)
    table = parameter_table(config.model).trained()
    sizes = {name: row.size for name, row in table.items()}
    muon = sum(size for name, size in sizes.items() if table[name].family in ("matrix", "head"))
    everything = sum(sizes.values())
    assert moved["gradient norm and clip"] == 12 * everything
    assert moved["elastic weight consolidation"] == 20 * everything
    assert moved["AdamW"] == 28 * (everything - muon)
    assert moved["Muon: momentum and weights"] == 24 * muon
    in_fp32 = sum(size for name, size in sizes.items() if "embed_tokens" in name or "mlp.gate." in name)
    assert moved["weight casts"] == 6 * (everything - in_fp32)
    # Two micro-batches, each forward and once more for the backward pass.
    assert next(o.repeats for o in found if o.name == "weight casts") == 2 * 2
    assert moved["gradient accumulation"] == (2 * 6 + 4) * (everything - in_fp32)
