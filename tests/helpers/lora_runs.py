"""Short runs with adapters on every linear map of a small base model, and the losses that they record."""

from pathlib import Path
from typing import Any

from glmforge.config import RunConfig
from glmforge.observe.record_files import read_jsonl
from helpers.tiny_data import TinyData

PHASE = {"name": "main", "steps": 6, "seq_len": 32, "batch_size": 4}
LORA = {"rank": 8, "targets": ["all-linear"]}


def lora_run(data: TinyData, directory: Path, base: Path, **sections: Any) -> RunConfig:
    """Six steps in bf16 from the weights in `base`, saved after the third and the last; `sections` in their place."""
    settings = {
        "phases": [PHASE],
        "lora": LORA,
        "optim": {"lr": 2e-3, "warmup_steps": 0},
        "precision": {"compute": "bf16"},
        "checkpoint": {"every_steps": 3, "background": False},
    }
    return data.run_config(directory, init_from=str(base), **(settings | sections))


def losses(run: Path) -> list[float]:
    return [record["loss"] for record in read_jsonl(run / "metrics.jsonl")]
