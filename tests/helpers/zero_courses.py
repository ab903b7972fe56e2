"""A short training course under DeepSpeed and under the native backend, on rows with uneven numbers of labels."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from glmforge.backend.base import Backend
from glmforge.backend.deepspeed.backend import DeepSpeedBackend
from glmforge.backend.native import NativeBackend
from glmforge.config.layout import resolve_layout
from glmforge.config.schema import RunConfig
from glmforge.data.stream.batch import Batch
from glmforge.objectives.next_token import NextTokenObjective
from glmforge.parallel.world import World, join_world
from glmforge.training.step import train_step
from helpers.drift import batch_of
from helpers.models import run_config

NUM_ROWS, SEQ_LEN, LR, EPS = 8, 32, 2e-3, 1e-3
"""A large eps: where two experts are as close as rounding, tokens change experts, and two courses part for good."""


@dataclass(frozen=True)
class Course:
    """Per step the losses of all terms and the gradient norm; after the last, the weights and router biases, whole."""

    losses: Tensor
    norms: Tensor
    weights: dict[str, Tensor]
    biases: Tensor


def config_of(num_steps: int, *, micro_batch_size: int | None = None, **sections: Any) -> RunConfig:
    phase = {"name": "main", "steps": num_steps, "seq_len": SEQ_LEN, "batch_size": NUM_ROWS, "aux_loss_weight": 1e-3}
    return run_config(
        model=run_config().model.model_dump() | sections.pop("model", {}),
        phases=[phase | {"mtp_loss_weight": 0.3} | sections.pop("phase", {})],
        optim={"lr": LR, "matrix_optimizer": "adamw", "eps": EPS} | sections.pop("optim", {}),
        precision={"compute": sections.pop("compute", "fp32")},
        parallel={"micro_batch_size": micro_batch_size},
        **sections,
    )


def zero(stage: int, *, torch_adam: bool = True, **settings: Any) -> dict[str, Any]:
    """DeepSpeed's configuration for the engine; `settings` are those of zero_optimization."""
    params = {"lr": LR, "betas": (0.9, 0.95), "eps": EPS, "weight_decay": 0.1}
    return {
        "optimizer": {"type": "AdamW", "params": params | ({"torch_adam": True} if torch_adam else {})},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 200} | settings,
        "steps_per_print": None,
    }


def build(config: RunConfig, world: World, settings: dict[str, Any] | None) -> Backend:
    """`settings` None is the native backend."""
    if settings is None:
        return NativeBackend.build(config, world)
    params = settings["optimizer"]["params"] | {"betas": config.optim.betas, "weight_decay": config.optim.weight_decay}
    settings = settings | {"optimizer": settings["optimizer"] | {"params": params}}
    return DeepSpeedBackend.build_under(settings, config, world)


def uneven_batch(config: RunConfig, step: int) -> Batch:
    """Row r has fewer labels the larger r is, so data ranks have different numbers of them."""
    batch = batch_of(config, step)
    labels = batch.labels_BS.clone()
    for row in range(len(labels)):
        labels[row, SEQ_LEN - 4 * row :] = -100
    return replace(batch, labels_BS=labels)


def train(
    config: RunConfig, backend: Backend, steps: range, broken_step: int | None = None
) -> tuple[list[list[float]], list[float]]:
    """Losses and norms of `steps`; in `broken_step` the gradient is not finite."""
    phase, world = config.phases[0], backend.world
    objective = NextTokenObjective(phase, config.model.num_nextn_predict_layers)
    backend.begin_phase(rope_theta=None, capacity_factor=None, balance=phase.balance)
    losses, norms = [], []
    share = NUM_ROWS // world.layout.data_ranks
    for step in steps:
        mine = uneven_batch(config, step).rows(world.data_rank * share, (world.data_rank + 1) * share)
        backend.train()
        outcome = train_step(
            backend,
            Overflowing(phase, config.model.num_nextn_predict_layers) if step == broken_step else objective,
            mine.micro_batches(world.layout.micro_batch_size or share),
            lr=LR,
            grad_clip=0.5,
            router_bias_rate=1e-2,
        )
        losses.append(list(outcome.losses.values()))
        norms.append(outcome.grad_norm)
    return losses, norms


class Overflowing(NextTokenObjective):
    def numerators(self, *args: Any) -> Tensor:
        return super().numerators(*args) * torch.inf


def course(config: RunConfig, world: World, settings: dict[str, Any] | None, broken_step: int | None = None) -> Course:
    backend = build(config, world, settings)
    losses, norms = train(config, backend, range(config.num_steps), broken_step)
    return finished(backend, losses, norms)


def finished(backend: Backend, losses: list[list[float]], norms: list[float]) -> Course:
    weights = {name: whole(tensor).clone() for name, tensor in backend.weights().items()}
    biases = torch.stack([bias for _, bias in sorted(backend.router_biases().items())])
    return Course(torch.tensor(losses, dtype=torch.float64), torch.tensor(norms), weights, biases)


def courses_on_rank(
    config: RunConfig, settings: Sequence[dict[str, Any] | None], broken_step: int | None = None
) -> list[Course] | None:
    """For `run_ranks`: a course with each of `settings`, one after the other, on rank 0."""
    with join_world(resolve_layout(config, dist.get_world_size()), timeout_s=120) as world:
        results = [course(config, world, each, broken_step) for each in settings]
        return results if world.is_main else None


def course_alone(config: RunConfig, broken_step: int | None = None) -> Course:
    """The native one, on this process."""
    return course(config, World(0, 1, torch.device("cpu"), resolve_layout(config, 1)), None, broken_step)


def on_nvme(directory: Path) -> dict[str, Any]:
    """ZeRO-3 with optimizer and parameters in files below `directory`."""
    place = {"device": "nvme", "nvme_path": str(directory), "pin_memory": False}
    parameters = {**place, "buffer_count": 8, "buffer_size": 2_000_000}
    return zero(3, torch_adam=False, offload_optimizer={**place, "buffer_count": 4}, offload_param=parameters)


def swap_files(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


def whole(tensor: Any) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
