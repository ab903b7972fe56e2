"""Real steps, profiled: the parts add up to the step, and the first advice names the fault that was planted.

Every run has processes of its own, in which the fault is put in the way of the trainer's code. What is asserted is
accounting and order, not speed: each fault is made to take far more of a step than anything else does.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from glmforge.backend.native import NativeBackend
from glmforge.config.schema import RunConfig
from glmforge.data.stream.phase import PhaseStream
from glmforge.doctor.profile.advice import advise
from glmforge.doctor.profile.ranges import MODEL_PHASES
from glmforge.doctor.profile.train import TrainProfile, profile_training, step_seconds_of
from glmforge.parallel import collectives
from helpers.command import Commands, write_config
from helpers.distributed import run_ranks
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
    """Along ep 16 MiB go with every exchange, as if its link had a fraction of the bandwidth."""
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
    CASES[fault][1]()
    return profile_training(config, STEPS)


def run_of(data: TinyData, root: Path, *, experts: int = 32, rows: int = 8, **sections: Any) -> RunConfig:
    model = tiny_config(vocab_size=512, moe_intermediate_size=experts, hidden_size=96).model_dump()
    phases = [{"name": "main", "steps": 10, "seq_len": 64, "batch_size": rows, "router_bias_rate": 0.0}]
    optim = {"lr": 1e-3, "matrix_optimizer": "adamw"}
    return data.run_config(root / "run", **({"model": model, "phases": phases, "optim": optim} | sections))


CASES: dict[str, tuple[int, Callable[[], None], dict[str, Any]]] = {
    "slow data": (1, slow_data, {}),
    "recompute": (1, nothing, {"parallel": {"recompute": "full"}}),
    "slow link": (2, slow_link, {"parallel": {"ep": 2}}),
    "imbalanced experts": (2, imbalanced_experts, {"parallel": {"ep": 2}, "experts": 2048, "rows": 32}),
}


@pytest.mark.parametrize("fault", CASES)
def test_the_first_advice_is_right_and_the_parts_add_up(fault: str, tiny_data: TinyData, tmp_path: Path) -> None:
    ranks, _, settings = CASES[fault]
    config = run_of(tiny_data, tmp_path, **settings)
    found = run_ranks(profiled, ranks, config, fault, init_group=False)[0]
    assert len(found.ranks) == ranks
    for rank in found.ranks:
        assert rank.parts.total == pytest.approx(rank.profiled_s, rel=0.03)
        for phase in MODEL_PHASES:
            assert rank.parts.phases[phase]["forward"] > 0
            # The loss head makes its gradients forward, all others have a pass of their own.
            assert phase == "loss head" or rank.parts.phases[phase]["backward"] > 0
    first, *others = advise(found)
    assert first.rule == fault, [first, *others]
    assert (found.ranks[0].parts.of("recompute") > 0) == (fault == "recompute")
    if fault == "slow link":
        assert "along ep" in first.text
    if fault == "imbalanced experts":
        assert "rank 0's experts" in first.text
        assert found.expert_load == pytest.approx(2.0)
    assert not (tmp_path / "run").exists()


def test_the_command(tiny_data: TinyData, tmp_path: Path, commands: Commands) -> None:
    """A profile on file is what the loader's is compared with; a trace has the ranges."""
    config = run_of(tiny_data, tmp_path)
    file, trace = tmp_path / "train.json", tmp_path / "trace"
    run = commands.start(
        "profile", "train", write_config(config), "--steps", "2", "--output", str(file), "--trace", str(trace)
    )
    assert run.wait() == 0, run.output
    content = json.loads(file.read_text())
    assert content["accounted"] == pytest.approx(1, abs=0.03)
    assert 0 < step_seconds_of(file) < content["step_s"]
    names = {event["name"] for event in json.loads((trace / "rank-00000.trace.json").read_text())["traceEvents"]}
    assert "glmforge.phase:experts" in names
    assert "accounted for" in run.output
