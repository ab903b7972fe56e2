"""The check whether a run fits: on this machine's memory, on a GPU's, by force, and for later phases."""

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from glmforge.config import load_config
from glmforge.config.layout import resolve_layout
from glmforge.config.schema import RunConfig
from glmforge.errors import ConfigError
from glmforge.plan.layout import select_phase
from glmforge.plan.memory.estimate import estimate_memory
from glmforge.recipes import fit
from glmforge.recipes.fit import check_fit, layout_at_hand
from glmforge.recipes.train import train
from glmforge.runtime.launch import LaunchEnvironment
from helpers.models import run_config

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
SHORT = {"name": "short", "steps": 4, "seq_len": 64, "batch_size": 8}
LONG = {"name": "long", "steps": 4, "seq_len": 256, "batch_size": 64}

Limit = Callable[[int], None]


@pytest.fixture
def limit_memory(monkeypatch: pytest.MonkeyPatch) -> Limit:
    """Let every machine and every GPU have so many bytes."""

    def limit(size: int) -> None:
        monkeypatch.setattr(fit, "usable_memory", lambda: size)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "H100")
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=size))

    return limit


def check(config: RunConfig, device: torch.device = CPU, *, ranks: int = 1, local: int = 1, **options: Any) -> None:
    launch = LaunchEnvironment(world_size=ranks, local_world_size=local)
    check_fit(config, resolve_layout(config, ranks), launch, device, **({"force": False} | options))


def peak_of(config: RunConfig, phase: str) -> int:
    return estimate_memory(select_phase(config, phase), resolve_layout(config, 1)).peak


def test_a_run_is_refused_that_needs_a_byte_more_than_there_is(limit_memory: Limit) -> None:
    config = run_config(phases=[LONG])
    peak = peak_of(config, "long")
    limit_memory(peak)
    check(config)
    limit_memory(peak - 1)
    message = r"phase 'long' does not fit: 1 rank .*activations.*GB with parallel\.micro_batch_size=1.*--force"
    with pytest.raises(ConfigError, match=message):
        check(config)
    check(config, force=True)


def test_ranks_on_a_cpu_share_its_memory_and_those_with_gpus_do_not(limit_memory: Limit) -> None:
    config = run_config(phases=[LONG])
    limit_memory(3 * estimate_memory(config, resolve_layout(config, 4)).peak)
    check(config, ranks=4, local=2)
    with pytest.raises(ConfigError, match="4 ranks of this machine"):
        check(config, ranks=4, local=4)
    check(config, GPU, ranks=4, local=4)


def test_a_later_phase_is_warned_of(limit_memory: Limit, caplog: pytest.LogCaptureFixture) -> None:
    config = run_config(phases=[SHORT, LONG])
    limit_memory(peak_of(config, "long") - 1)
    with caplog.at_level(logging.WARNING):
        check(config)
    (line,) = caplog.messages
    assert line.startswith("phase 'long' does not fit")


def test_a_run_with_deepspeed_is_warned(limit_memory: Limit, caplog: pytest.LogCaptureFixture) -> None:
    """Its optimizer may lie on a disk, which the plan does not know."""
    limit_memory(1 << 20)
    with caplog.at_level(logging.WARNING):
        check(run_config(phases=[LONG]).model_copy(update={"backend": "deepspeed"}))
    assert "phase 'long' does not fit" in caplog.text


def test_the_whole_model_does_not_fit_eight_gpus() -> None:
    """8 x 80 GB for 355B: the weights alone are 1.4 TB in fp32."""
    path = Path(__file__).parents[3] / "configs/pretrain_glm45_355b.yaml"
    one_node = ["parallel.pp=1", "parallel.cp=1", "parallel.ep=8", "parallel.dp_replicate=1"]
    config = load_config(path, one_node)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100 80GB HBM3")
        patch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=80 * 10**9))
        with pytest.raises(
            ConfigError,
            match=r"phase .general. does not fit: a rank of pipeline stage 0 would need "
            r"727 GB \(optimizer",
        ):
            check(config, GPU, ranks=8, local=8)


def test_training_does_not_begin(tmp_path: Path, limit_memory: Limit) -> None:
    limit_memory(1000)
    with pytest.raises(ConfigError, match="does not fit"):
        train(run_config(output_dir=str(tmp_path / "run")))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("device", "name"), [(CPU, ""), (GPU, "NVIDIA H100 80GB HBM3")])
def test_a_refused_layout_comes_with_one_that_works(
    device: torch.device, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    precision = {"compute": "bf16"}
    config = run_config(phases=[SHORT], parallel={"pp": 3}, precision=precision)
    with pytest.raises(ConfigError, match="a layout that works on 4: ") as refused:
        layout_at_hand(config, LaunchEnvironment(world_size=4, local_world_size=4), device)
    settings = dict(word.split("=") for word in str(refused.value).rpartition("works on 4: ")[2].split())
    parallel = {key.removeprefix("parallel."): value for key, value in settings.items()}
    changed = {key: int(value) if value.isdigit() else value for key, value in parallel.items()}
    assert resolve_layout(run_config(phases=[SHORT], parallel=changed, precision=precision), 4).world_size == 4
