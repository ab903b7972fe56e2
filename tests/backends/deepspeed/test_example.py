"""The whole JSON of `examples/deepspeed`, unchanged, in a run beside the same one without DeepSpeed."""

import json
from pathlib import Path

from glmforge.config import RunConfig
from glmforge.observe.record_files import read_jsonl
from helpers.command import Commands, write_config
from helpers.tiny_data import TinyData

EXAMPLE = Path(__file__).parents[3] / "examples/deepspeed/zero3.json"


def test_it_trains_as_the_native_backend_does(tiny_data: TinyData, tmp_path: Path, commands: Commands) -> None:
    """ZeRO-3 with optimizer and parameters in host memory, bf16, AdamW, WarmupCosineLR, on two ranks."""
    given = tiny_data.run_config(tmp_path / "zero").model_dump(mode="json", exclude={"optim", "precision"})
    given["phases"] = [{"name": "main", "steps": 20, "seq_len": 32, "batch_size": 8}]
    settings = json.loads(EXAMPLE.read_text())
    zero = RunConfig.model_validate(given | {"backend": "deepspeed", "deepspeed": {"settings": settings}})
    native = zero.model_copy(update={"backend": "native", "deepspeed": None, "output_dir": tmp_path / "native"})
    losses = {}
    for config in (zero, native):
        started = commands.start("train", write_config(config), ranks=2)
        assert started.wait() == 0, started.output[-3000:]
        losses[config.backend] = [record["loss"] for record in read_jsonl(config.output_dir / "metrics.jsonl")]
    apart = [abs(one - other) for one, other in zip(losses["deepspeed"], losses["native"], strict=True)]
    assert len(apart) == 20
    assert 0 < max(apart) < 1e-3  # bf16 rounds otherwise in each; bit-equal ones would mean that ZeRO did not run
    told = json.loads((tmp_path / "zero" / "deepspeed.json").read_text())
    assert told["engine"]["zero_optimization"]["offload_param"]["device"] == "cpu"
    assert "optimizer.params.lr: 0.0003 by optim.lr" in told["notes"]
