"""Our knowledge of DeepSpeed's configuration against DeepSpeed's own."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from deepspeed.runtime.config import DeepSpeedConfig as TheirConfig
from deepspeed.runtime.lr_schedules import WarmupCosineLR, WarmupDecayLR, WarmupLR
from deepspeed.runtime.precision_config import DeepSpeedBF16Config
from deepspeed.runtime.swap_tensor.aio_config import AIO_DEFAULT_DICT
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.runtime.zero.offload_config import DeepSpeedZeroOffloadOptimizerConfig, DeepSpeedZeroOffloadParamConfig
from pydantic import BaseModel

from glmforge.config import RunConfig
from glmforge.config.deepspeed import resolve
from glmforge.config.deepspeed_keys import REFUSED, DeepSpeedConfig
from glmforge.optim.schedule import learning_rate_schedule
from helpers.tiny_data import TinyData

EXAMPLE = Path(__file__).parents[3] / "examples/deepspeed/zero3.json"
NOT_TAKEN = {
    # needs NVIDIA's Grace Hopper
    "super_offload",
    "cpuadam_cores_perc",
    # names of an older version, or of none that is documented
    "cpu_offload_param",
    "cpu_offload_use_pin_memory",
    "stage3_gather_fp16_weights_on_model_save",
    "legacy_stage1",
    "compute_grad_norm",
    "parameter_alignment",
    "pipeline_loading_checkpoint",
    "enable_sanity_checks",
    "save_muon_momentum_buffer_in_memory",
    "leaf_module",
}


def section(*path: str) -> type[BaseModel]:
    model: Any = DeepSpeedConfig
    for name in path:
        annotation = model.model_fields[name].annotation
        model = next(kind for kind in (annotation, *getattr(annotation, "__args__", ())) if isinstance(kind, type))
    return model


def json_names(model: type[BaseModel]) -> set[str]:
    return {field.alias or name for name, field in model.model_fields.items()}


@pytest.mark.parametrize(
    ("path", "theirs"),
    [
        (("zero_optimization",), DeepSpeedZeroConfig),
        (("zero_optimization", "offload_optimizer"), DeepSpeedZeroOffloadOptimizerConfig),
        (("zero_optimization", "offload_param"), DeepSpeedZeroOffloadParamConfig),
        (("bf16",), DeepSpeedBF16Config),
    ],
)
def test_sections_have_deepspeed_s_keys(path: tuple[str, ...], theirs: type[BaseModel]) -> None:
    ours, refused = set(section(*path).model_fields), {key.split(".")[-1] for key in REFUSED}
    assert ours - json_names(theirs) == set()
    assert json_names(theirs) - ours - refused - NOT_TAKEN == set()


def test_aio() -> None:
    assert set(section("aio").model_fields) == AIO_DEFAULT_DICT.keys()


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_deepspeed_takes_what_the_example_becomes(tiny_data: TinyData, tmp_path: Path, stage: int) -> None:
    settings = json.loads(EXAMPLE.read_text())
    settings["zero_optimization"] |= {"stage": stage} | ({"offload_param": None} if stage < 3 else {})
    config = run_of(tiny_data, tmp_path, settings)
    assert config.deepspeed is not None
    engine = resolve(config.deepspeed.settings, config, 1).engine
    theirs = TheirConfig(engine | {"train_micro_batch_size_per_gpu": 1})
    assert theirs.zero_config.stage == stage
    assert theirs.zero_config.prefetch_bucket_size == int(0.9 * config.model.hidden_size**2)
    assert theirs.optimizer_params["betas"] == [0.9, 0.95]
    assert theirs.gradient_clipping == 0.0


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        (WarmupLR, {"warmup_max_lr": 1e-3}),
        (WarmupDecayLR, {"warmup_max_lr": 1e-3, "total_num_steps": 100}),
        (WarmupCosineLR, {"cos_min_ratio": 0.1, "total_num_steps": 100}),
    ],
)
def test_our_schedule_is_theirs(tiny_data: TinyData, tmp_path: Path, kind: Any, params: dict[str, Any]) -> None:
    """But for their two steps at the initial rate, by which the curves are apart."""
    params |= {"warmup_num_steps": 20, "warmup_type": "linear"}
    settings = {
        "zero_optimization": {"stage": 1},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "scheduler": {"type": kind.__name__, "params": params},
    }
    ours = learning_rate_schedule(run_of(tiny_data, tmp_path, settings))
    optimizer = torch.optim.AdamW([torch.zeros(1, requires_grad=True)], lr=1e-3)
    scheduler = kind(optimizer, **params)
    for step in range(1, 101):
        theirs = optimizer.param_groups[0]["lr"]
        scheduler.step()  # as the engine does after the optimizer
        earlier = [ours(max(0, step - late)) for late in (0, 1, 2)]
        assert min(earlier) - 1e-12 <= theirs <= max(earlier) + 1e-12


def run_of(tiny_data: TinyData, tmp_path: Path, settings: dict[str, Any]) -> RunConfig:
    given = tiny_data.run_config(tmp_path / "run").model_dump(exclude={"optim", "precision"})
    given["phases"] = [{"name": "main", "steps": 100, "seq_len": 32, "batch_size": 8}]
    return RunConfig.model_validate(given | {"backend": "deepspeed", "deepspeed": {"settings": settings}})
