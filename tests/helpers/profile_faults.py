"""Faults put in the way of the trainer's code, in a process of its own each, and a profile of a run that has one.

    found = run_ranks(profiled, ranks, config, "slow link", init_group=False)[0]

Each fault takes far more of a step than anything else does.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from glmforge.backend.native import NativeBackend
from glmforge.config.schema import RunConfig
from glmforge.data.stream.phase import PhaseStream
from glmforge.doctor.profile.train import TrainProfile, profile_training
from glmforge.parallel import collectives
from helpers.models import tiny_config
from helpers.tiny_data import TinyData

STEPS = 3


def slow_data() -> None:
    """Every batch takes a quarter of a second to read."""
    batch = PhaseStream.batch

    def sleeping(self: PhaseStream, *args: Any, **kwargs: Any) -> Any:
        time.sleep(0.25)
        return batch(self, *args, **kwargs)

    PhaseStream.batch = sleeping  # type: ignore[method-assign]


def slow_link() -> None:
    """Along ep 4 messages of 4 MiB go with every exchange, as if its link had a fraction of the bandwidth."""
    sent = collectives._sent

    def loaded(x: Any, group: dist.ProcessGroup, *splits: Any) -> Any:
        ballast = torch.zeros(1 << 20)
        for _ in range(4):
            dist.all_to_all_single(torch.empty_like(ballast), ballast, group=group)
        return sent(x, group, *splits)

    collectives._sent = loaded


def imbalanced_experts() -> None:
    """All tokens choose the first half of the experts, which the first of two ep ranks has."""
    begin = NativeBackend.begin_phase

    def biased(self: NativeBackend, **settings: Any) -> None:
        begin(self, **settings)
        for bias_E in self.router_biases().values():
            bias_E[: len(bias_E) // 2] = 10.0

    NativeBackend.begin_phase = biased  # type: ignore[method-assign]


def nothing() -> None:
    """No fault."""


def profiled(config: RunConfig, fault: str) -> TrainProfile:
    FAULTS[fault][1]()
    return profile_training(config, STEPS)


def run_of(data: TinyData, root: Path, *, experts: int = 32, rows: int = 8, **sections: Any) -> RunConfig:
    model = tiny_config(vocab_size=512, moe_intermediate_size=experts, hidden_size=96).model_dump()
    phases = [{"name": "main", "steps": 10, "seq_len": 64, "batch_size": rows, "router_bias_rate": 0.0}]
    optim = {"lr": 1e-3, "matrix_optimizer": "adamw"}
    return data.run_config(root / "run", **({"model": model, "phases": phases, "optim": optim} | sections))


FAULTS: dict[str, tuple[int, Callable[[], None], dict[str, Any]]] = {
    "none, one rank": (1, nothing, {}),
    "none, two ranks": (2, nothing, {"parallel": {"ep": 2}}),
    "slow data": (1, slow_data, {}),
    "recompute": (1, nothing, {"parallel": {"recompute": "full"}}),
    "slow link": (2, slow_link, {"parallel": {"ep": 2}}),
    "imbalanced experts": (2, imbalanced_experts, {"parallel": {"ep": 2}, "experts": 2048, "rows": 32}),
}
"""By name, which is that of the advice: ranks, what plants it, and sections of the run."""
