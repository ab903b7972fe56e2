"""Whole-training-step results of a layout, in a form that can be compared with one process's.

A case is a few steps of the trainer's own step function on batches that every layout reads in its own shares: losses,
every gradient before clipping, its norm, tokens per expert, and all weights, router biases and optimizer states after
the last step, put together from all ranks by published name.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from glmforge.adapt.begin import begin_magnitudes
from glmforge.adapt.lora import adapters_of
from glmforge.backend.native import NativeBackend
from glmforge.checkpoint.quantised import QuantisedWeight, with_weights
from glmforge.config.adapters import table_with
from glmforge.config.layout import resolve_layout
from glmforge.config.parameters import Parameter, parameter_table
from glmforge.config.schema import RunConfig
from glmforge.data.stream.batch import Batch
from glmforge.model.dropout import Noise
from glmforge.model.init import initial_chunk
from glmforge.objectives.next_token import LOSS_WEIGHT, NextTokenObjective
from glmforge.objectives.sft import SftObjective
from glmforge.parallel.build import Extend
from glmforge.parallel.model import ParallelModel
from glmforge.parallel.placement import local_chunk
from glmforge.parallel.world import World, join_world
from glmforge.training.step import train_step
from helpers.models import run_config

NUM_STEPS = 3
LR = 1e-3
NUM_ROWS, SEQ_LEN = 8, 32


@dataclass(frozen=True)
class Case:
    """A layout to be compared with a single process: `parallel` and whatever else differs from the usual run.

    `kernels` are those of the layout; the single process has the plain ones. In stage "sft" few tokens are trained on,
    with weights, and every conversation counts the same. `lora` are adapters beside frozen weights, held as `frozen`
    says.
    """

    parallel: dict[str, Any]
    world_size: int
    phase: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    optim: dict[str, Any] = field(default_factory=dict)
    regularization: dict[str, Any] = field(default_factory=dict)
    kernels: dict[str, str] = field(default_factory=dict)
    stage: dict[str, str] = field(default_factory=dict)
    lora: dict[str, Any] = field(default_factory=dict)
    frozen: str = "fp32"

    @property
    def name(self) -> str:
        changes = self.parallel | self.phase | self.model | self.optim | self.regularization | self.kernels | self.stage
        changes |= self.lora
        return ",".join(f"{key}={value}" for key, value in changes.items())

    def config(self, *, single: bool) -> RunConfig:
        """The run of this case; `single` for the one process it is compared with."""
        usual = run_config()
        size = {"steps": NUM_STEPS, "seq_len": SEQ_LEN, "batch_size": NUM_ROWS}
        phase = {"name": "main", "aux_loss_weight": 1e-2} | size
        if self.lora:
            phase |= {"mtp_loss_weight": 0.3}  # as elsewhere here: what runs with adapters leave out by default
        return run_config(
            # Weights large enough that attention, experts and routers all matter to the loss.
            model=usual.model.model_dump() | {"initializer_range": 0.15} | self.model,
            phases=[phase | self.phase],
            parallel={} if single else self.parallel,
            # Adam makes steps of full size of gradients that are zero but for rounding, such as that of a key's bias in
            # the dims that do not rotate (it moves all of a query's scores alike): a large eps keeps them small.
            optim={"lr": LR, "eps": 1e-3} | self.optim,
            regularization=self.regularization,
            kernels={} if single else self.kernels,
            precision={"compute": "fp32", "frozen": self.frozen},
            **self.stage,
            **({"lora": self.lora, "init_from": Path("weights")} if self.lora else {}),
        )


def batches(config: RunConfig) -> list[Batch]:
    """The global batch of each step: packed documents of uneven length, other ones in every row."""
    phase, generator = config.phases[0], torch.Generator().manual_seed(5)
    made = []
    for step in range(NUM_STEPS):
        shape = (phase.batch_size, phase.seq_len + 1)
        ids = torch.randint(0, config.model.vocab_size, shape, generator=generator)
        cuts = [(3 + 5 * row + step) % (phase.seq_len - 2) + 1 for row in range(phase.batch_size)]
        lengths = tuple((cut, phase.seq_len - cut) for cut in cuts)
        labels = ids[:, 1:].clone()
        for row, cut in enumerate(cuts):
            labels[row, cut - 1] = -100
        batch = Batch(ids[:, :-1], labels, lengths, tuple(range(phase.batch_size)), (0,) * phase.batch_size)
        made.append(_with_weights(batch, generator) if config.stage == "sft" else batch)
    return made


def _with_weights(batch: Batch, generator: torch.Generator) -> Batch:
    """Most tokens are not trained on, and the others count differently."""
    weights_BS = torch.tensor([0.0, 0.0, 0.0, 0.5, 1.0, 3.0])[torch.randint(6, batch.ids_BS.shape, generator=generator)]
    labels_BS = batch.labels_BS.masked_fill(weights_BS == 0, -100)
    return replace(batch, labels_BS=labels_BS, per_token={LOSS_WEIGHT: weights_BS})


def run_case(
    config: RunConfig, world: World, *, rows: Sequence[Parameter] = (), extend: Extend | None = None
) -> dict[str, Tensor]:
    """Train `NUM_STEPS` steps on this rank; everything worth comparing, whole, on every rank.

    `rows` declare the parameters that `extend` puts into the model.
    """
    phase = config.phases[0]
    table = table_with(config.model, config.lora, quantises=config.precision.frozen == "nf4").extended(rows)
    backend = NativeBackend.build(config, world, table=table, extend=extend or adapters_of(config))
    model, optimizer = backend.model, backend.optimizer
    begin_quantised(model, config.seed)
    fill_adapters(model)
    model.set_capacity_factor(phase.capacity_factor)
    model.set_balance(phase.balance)
    objective = _objective(config)
    results = {f"initial.{name}": tensor for name, tensor in whole_state(model.state_dict()).items()}
    for step, batch in enumerate(batches(config)):
        share = phase.batch_size // world.layout.data_ranks
        mine = batch.rows(world.data_rank * share, (world.data_rank + 1) * share)
        micro_batches = mine.to(world.device).micro_batches(world.layout.micro_batch_size or share)
        noise = Noise.of_step(config.regularization, config.seed, step, config.adapter_dropout)
        if step == 0:
            backend.accumulate(objective, micro_batches, noise)
            results |= {f"gradient.{name}": grad for name, grad in whole_state(_gradients(model)).items()}
            optimizer.zero_grad()
        outcome = train_step(
            backend,
            objective,
            micro_batches,
            lr=LR,
            grad_clip=0.5,
            router_bias_rate=phase.router_bias_rate,
            noise=noise,
        )
        results |= {f"loss.{step}.{term}": torch.tensor(value) for term, value in outcome.losses.items()}
        results[f"grad_norm.{step}"] = torch.tensor(outcome.grad_norm)
        results[f"counts.{step}"] = outcome.counts_LE.cpu()
        results[f"dropped.{step}"] = outcome.dropped_LE.cpu()
        results[f"attended.{step}"] = outcome.mean_attended_length.cpu()
    results |= {f"weight.{name}": tensor for name, tensor in whole_state(model.state_dict()).items()}
    results |= {f"optimizer.{name}": tensor for name, tensor in whole_state(optimizer.state_dict()).items()}
    return results


def begin_quantised(model: ParallelModel, seed: int) -> None:
    """Give quantised weights the codes of the initial weights, which no run needs: each of them is loaded."""
    table = parameter_table(model.config)
    for name, weight in with_weights(model.state_dict()).items():
        if isinstance(weight, QuantisedWeight):
            offsets, sizes = weight.part()
            values = initial_chunk(table[name], offsets, sizes, seed=seed, std=model.config.initializer_range)
            weight.write([slice(0, size) for size in sizes], values)


@torch.no_grad()
def fill_adapters(model: ParallelModel) -> None:
    """Give adapters values as after many steps: factors of zeros would hide what is wrong with others' gradients."""
    for name, tensor in model.named_parameters():
        if ".lora_" in name and model.table[name].initial == "zeros":
            row = replace(model.table[name], initial="fan_in")
            local, offsets = local_chunk(tensor)
            local.copy_(initial_chunk(row, offsets, local.shape, seed=1, std=0.0))
    begin_magnitudes(model.state_dict(), model.table, model.world)


def _objective(config: RunConfig) -> NextTokenObjective:
    phase, num_mtp = config.phases[0], config.model.num_nextn_predict_layers
    return (
        SftObjective(phase, num_mtp, mean="conversations")
        if config.stage == "sft"
        else NextTokenObjective(phase, num_mtp)
    )


def rank_case(case: Case) -> dict[str, Tensor]:
    """`run_case` on the ranks that `run_ranks` started; the whole result on rank 0, nothing on the others."""
    config = case.config(single=False)
    layout = resolve_layout(config, dist.get_world_size())
    with join_world(layout, timeout_s=60) as world:
        results = run_case(config, world)
        return results if world.is_main else {}


def single_case(case: Case, device: str = "cpu") -> dict[str, Tensor]:
    """The same on one process."""
    config = case.config(single=True)
    return run_case(config, World(0, 1, torch.device(device), resolve_layout(config, 1)))


def _gradients(model: ParallelModel) -> dict[str, Tensor]:
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def whole_state(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Put tensors together from all ranks' parts; where several hold a part, they must hold the same bits."""
    parts = {name: _part_of(tensor) for name, tensor in tensors.items()}
    gathered: list[dict[str, Any]] = [parts]
    if dist.is_initialized():
        gathered = [{}] * dist.get_world_size()
        dist.all_gather_object(gathered, parts)
    whole: dict[str, Tensor] = {}
    for rank_parts in gathered:
        for name, (shape, offsets, local) in rank_parts.items():
            tensor = whole.setdefault(name, torch.full(shape, float("nan"), dtype=torch.float64))
            place = tuple(slice(o, o + n) for o, n in zip(offsets, local.shape, strict=True))
            known, values = tensor[place], torch.from_numpy(local)
            copies_agree = known.isnan() | (known == values)
            assert copies_agree.all(), f"{name}: ranks that hold copies of a part differ"
            tensor[place] = values
    for name, tensor in whole.items():
        assert not tensor.isnan().any(), f"{name}: no rank holds some of it, or it is not finite"
    return whole


def _part_of(tensor: Tensor) -> tuple[tuple[int, ...], tuple[int, ...], NDArray[np.float64]]:
    """Shape of the whole, where this rank's part of it begins, and its values, exact in fp64.

    As an array: a pickled tensor is a file of torch's own, which costs a hundred times as much to read.
    """
    local, offsets = local_chunk(tensor)
    return tuple(tensor.shape), tuple(offsets), local.detach().double().cpu().numpy().copy()


def differences(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, float]:
    """Relative error (of norms) of everything; exact integers count as infinitely wrong if they differ at all."""
    missing = expected.keys() ^ actual.keys()
    assert not missing, f"only in one of the two: {sorted(missing)}"
    return {name: _error(name, actual[name], expected[name]) for name in expected}


def _error(name: str, actual: Tensor, expected: Tensor) -> float:
    if not expected.is_floating_point():
        return 0.0 if torch.equal(actual, expected) else float("inf")
    # A bias starts at zero and one without a real gradient stays there: it is measured by the length of a step.
    floor = LR * expected.numel() ** 0.5 if name.startswith("weight.") else 1e-12
    return float((actual.double() - expected.double()).norm() / expected.double().norm().clamp_min(floor))
