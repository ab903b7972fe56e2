"""Throughputs that others have published, which predictions are held against: the table, and how it was made.

**What is in it.** Every throughput that we found published of training on Hopper GPUs with NVLink (H100, H200, H800),
the ones of which the planner has measured points, in bf16 or fp8: pre-training, fine-tuning and LoRA of decoder-only
transformers, dense or MoE, of any size. A run that was published again with a newer release is a row of its own.

**What is predicted** (`data/published_runs.csv`): those whose layout is published, in the same place or in a recipe
that it names: GPUs, tp, cp, pp with its stages per rank, ep, length and batch. Anything else that is not (micro-batch,
recomputation, precision) is said in `assumed`. All others are listed with the reason
(`data/published_not_predicted.csv`): nothing is recalled.

**What is fitted to it.** The hash of a model's name says on which side all runs of the model are, whoever published
them (`is_held_out`). Nothing of the planner may be chosen by a look at a row that is held out.

Every row has its source, with path and commit, in `data/published_models.toml`, which also has the models. Settings
that ours does not have are expressed by the nearest that it has:

- ZeRO-1 (`engine: zero1`) is FSDP whose weights stay gathered and whose gradients are reduced once a step.
- Exchanges of experts that go beside another micro-batch (`overlap: ep`) are those of two micro-batches at once, each
  one half (`parallel.ep_overlap`).
- Recomputation of norms, activations or projections alone is `recompute: selective`.
"""

import csv
import hashlib
import tomllib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, get_args

from glmforge.config import RunConfig, load_config
from glmforge.config.layout import Layout, resolve_layout
from glmforge.config.lora import parse_lora
from glmforge.config.parallel import LowPrecisionMap
from glmforge.plan.counts.flops import train_flops_per_token
from glmforge.plan.machine.machine import Machine, find_machine
from glmforge.plan.stages.stage import PRETRAINING, TrainingStage, find_stage
from glmforge.plan.time.pieces import Kernels

DATA = Path(__file__).parent / "data"
_RUN = """
name: published
data: {{tokenizer: none, sources: [{{name: random, path: none}}]}}
optim: {{matrix_optimizer: adamw, grad_clip: null}}
phases: [{{name: main, steps: 1, seq_len: {seq_len}, batch_size: {batch}, mtp_loss_weight: {mtp}}}]
parallel: {{{parallel}}}
model: {{{model}}}
"""
_USUAL = {
    "first_k_dense_replace": 0,
    "use_qk_norm": False,
    "attention_bias": False,
    "rope_theta": 1e6,
    "max_position_embeddings": 2**21,
    "routed_scaling_factor": 1.0,
    "n_shared_experts": 0,
    "num_nextn_predict_layers": 0,
    "pad_token_id": "null",
    "eos_token_id": [1],
}
_NO_EXPERTS = {"moe_intermediate_size": 1024, "n_routed_experts": 2, "num_experts_per_tok": 1}
_LORA = {
    "all": "q_proj+k_proj+v_proj+o_proj+gate_proj+up_proj+down_proj+experts",
    "all, dense": "q_proj+k_proj+v_proj+o_proj+gate_proj+up_proj+down_proj",
    "qkv": "q_proj+k_proj+v_proj",
}


@dataclass(frozen=True)
class Published:
    """A row of the table; the columns are those of the file.

    Attributes:
        batch, passes: sequences of a step, and in how many goes through the pipeline; each is predicted as a step.
        trains: "all", "all mtp" with a layer for multi-token prediction, or "lora16" and of which maps.
        counts: how much of attention the published FLOPs count, its causal half or the full square; needed where no
            tokens are published.
    """

    model: str
    framework: str
    release: str
    gpu: str
    gpus: int
    precision: str
    seq_len: int
    batch: int
    passes: int
    micro_batch: int
    tp: int
    cp: int
    pp: int
    vp: int
    ep: int
    engine: str
    recompute: str
    dispatch: str
    overlap: str
    attention: str
    kernels: str
    trains: str
    tokens_per_second: float | None
    teraflops: float | None
    counts: str
    source: str
    assumed: str

    @property
    def layout(self) -> str:
        """In words, for tables."""
        axes = ("tp", "cp", "pp", "vp", "ep")
        sizes = [f"{axis} {getattr(self, axis)}" for axis in axes if getattr(self, axis) > 1]
        return ", ".join(sizes) or "data parallel"

    @property
    def what(self) -> str:
        """Everything but model and release: rows that agree in it are one run, published again."""
        return ", ".join(
            [
                f"{self.gpus:,} {self.gpu.upper()}",
                self.precision,
                f"{self.seq_len:,}",
                self.layout,
                *(["LoRA"] if self.trains.startswith("lora") else []),
            ]
        )

    @property
    def is_held_out(self) -> bool:
        return is_held_out(self.model)


def is_held_out(model: str) -> bool:
    """Whether nothing may be fitted to a model's runs."""
    return int(hashlib.sha256(model.encode()).hexdigest(), 16) % 2 == 1


@cache
def facts() -> dict[str, Any]:
    """Sources, models, and reasons why rows are not predicted."""
    return tomllib.loads((DATA / "published_models.toml").read_text("utf-8"))


@cache
def published_runs() -> tuple[Published, ...]:
    """All that are predicted."""
    with (DATA / "published_runs.csv").open(encoding="utf-8", newline="") as file:
        return tuple(_row(row) for row in csv.DictReader(file))


@cache
def not_predicted() -> tuple[dict[str, str], ...]:
    """The others, with the reason: a key of `facts()["not_predicted"]`."""
    with (DATA / "published_not_predicted.csv").open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))


def _row(row: dict[str, str]) -> Published:
    kinds = Published.__annotations__
    values = {name: int(value) if kinds[name] is int else value for name, value in row.items()}
    numbers = {name: float(row[name]) if row[name] else None for name in ("tokens_per_second", "teraflops")}
    return Published(**values | numbers)


@dataclass(frozen=True)
class Expressed:
    """A published run in glmforge's own words."""

    config: RunConfig
    layout: Layout
    machine: Machine
    kernels: Kernels
    stage: TrainingStage
    mean_attended: int | None

    @property
    def flops_per_token(self) -> float:
        """As utilisation counts them here: the causal half of attention."""
        phase = self.config.phases[0]
        attended = self.mean_attended or phase.seq_len
        return train_flops_per_token(self.config.model, attended, phase.mtp_loss_weight > 0, self.stage)


def express(row: Published) -> Expressed:
    """In nodes of eight GPUs with an adapter of 400 Gb/s each, as DGX H100 has them."""
    facts_of_model = facts()["models"][row.model]
    model = {key: value for key, value in facts_of_model.items() if key not in ("window", "stands_for")}
    is_dense = "n_routed_experts" not in model
    if is_dense:
        model = model | _NO_EXPERTS | {"first_k_dense_replace": model["num_hidden_layers"]}
    model = _USUAL | model
    # A GLM has a shared expert; the planner counts what has none.
    with_shared = model | {"n_shared_experts": max(1, model["n_shared_experts"])}
    text = _RUN.format(
        seq_len=row.seq_len,
        batch=row.batch // row.passes,
        mtp=0.1 if row.trains.endswith("mtp") else 0,
        parallel=", ".join(f"{key}: {value}" for key, value in _parallel(row, model).items()),
        model=", ".join(f"{key}: {_yaml(value)}" for key, value in with_shared.items()),
    )
    config = load_config(text)
    shared = {"n_shared_experts": model["n_shared_experts"]}
    config = config.model_copy(update={"model": config.model.model_copy(update=shared)})
    kernels = replace(Kernels.of(config), implementation=row.kernels, attention=row.attention)
    if row.precision == "fp8":
        # Transformer Engine and torchao multiply gradients of weights in fp8 too.
        kernels = replace(kernels, fp8_maps=frozenset(get_args(LowPrecisionMap)), fp8_weight_gradients=True)
    stage = PRETRAINING
    if row.trains.startswith("lora"):
        rank, targets = row.trains.removeprefix("lora").split()
        names = _LORA["all, dense" if targets == "all" and is_dense else targets]
        stage = find_stage("lora", parse_lora(f"rank={rank},target={names}"))
    window = facts_of_model.get("window")
    # In every second layer a query reaches the window's keys: pairs as a causal row of twice the window has them.
    attended = (row.seq_len + 2 * window - window * window // row.seq_len) // 2 if window else None
    return Expressed(config, resolve_layout(config, row.gpus), find_machine(row.gpu, "ib400"), kernels, stage, attended)


def _parallel(row: Published, model: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {axis: getattr(row, axis) for axis in ("tp", "cp", "pp", "ep")}
    found |= {"micro_batch_size": row.micro_batch, "recompute": row.recompute}
    if row.gpus == row.tp * row.cp * row.pp * row.ep == 1:
        return found
    if row.pp > 1:
        is_v = row.framework == "HAI-LLM"
        found["pipeline_schedule"] = "dualpipev" if is_v else "interleaved_1f1b" if row.vp > 1 else "1f1b"
        found["pipeline_stages_per_rank"] = row.vp
        stages, layers = row.pp * row.vp, model["num_hidden_layers"]
        # Megatron's stages have equal numbers of layers, embedding and head counted as one each if need be.
        if row.engine == "zero1" and not is_v and layers % stages == 0:
            found["pipeline_layers"] = [layers // stages] * stages
        elif row.engine == "zero1" and not is_v and (layers + 2) % stages == 0:
            each = (layers + 2) // stages
            found["pipeline_layers"] = [each - 1, *[each] * (stages - 2), each - 1]
    elif row.engine == "zero1":
        found |= {"reshard_after_forward": "false", "reduce_gradients": "last_micro_batch"}
    elif row.engine == "fsdp":
        found["reduce_gradients"] = "last_micro_batch"
    if row.dispatch:
        found["ep_dispatch"] = row.dispatch
    if row.overlap == "ep":
        found |= {"ep_overlap": "true", "micro_batch_size": 2 * row.micro_batch}
    if row.overlap == "tp":
        found |= {"async_tp": "true", "compile": "true"}
    if row.overlap == "offload":
        found["activation_offload"] = "true"
    return found


def _yaml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def published_tokens(row: Published, flops_per_token: float) -> float:
    """Per second and GPU; where FLOP/s alone are published, by the FLOPs of a token as the source counts them."""
    if row.tokens_per_second is not None:
        return row.tokens_per_second
    assert row.teraflops is not None, "tests see to it that a row has one of the two"
    if row.counts == "full":
        model = facts()["models"][row.model]
        heads = model["num_attention_heads"] * model["head_dim"]
        flops_per_token += 6 * row.seq_len * heads * model["num_hidden_layers"]
    return row.teraflops * 1e12 / flops_per_token
