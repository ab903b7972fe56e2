"""Adapters of random weights for a small model: in memory, as a checkpoint, merged."""

from pathlib import Path

import torch
from torch import Tensor

from glmforge.checkpoint.adapter.base import base_weights
from glmforge.checkpoint.adapter.open import Adapter
from glmforge.checkpoint.adapter.saver import AdapterSaver
from glmforge.checkpoint.adapter.write import AdapterInfo
from glmforge.checkpoint.format.store import checkpoint_path
from glmforge.checkpoint.merged import MergedWeights
from glmforge.config.adapters import table_with
from glmforge.config.checkpoint import CheckpointConfig
from glmforge.config.lora import LoraConfig
from glmforge.config.model import ModelConfig
from glmforge.model import GlmMoe
from helpers.checkpoints import make_meta


def made_adapter(model: ModelConfig, seed: int, *targets: str, rank: int = 4, **settings: object) -> Adapter:
    """Large enough that every part of it changes what the model says."""
    lora = LoraConfig(rank=rank, targets=targets, **settings)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(seed)
    rows = [row for row in table_with(model, lora).trained().values() if row.lr_scale]
    return Adapter(lora, {row.name: _made(row.shape, generator) for row in rows})


def merged_model(base: GlmMoe, adapter: Adapter) -> GlmMoe:
    """By the weights that exports have."""
    model = GlmMoe(base.config)
    weights = MergedWeights(adapter.tensors, base.state_dict(), base.config, adapter.lora)
    model.load_state_dict(dict(weights))
    return model.eval()


def save_adapter(root: Path, model: ModelConfig, adapter: Adapter, base: Path) -> Path:
    """As a run on the directory `base` saves it; the checkpoint."""
    info = AdapterInfo(model, adapter.lora, "lite", base_weights(base))
    tensors = {f"model.{name}": tensor for name, tensor in adapter.tensors.items()}
    saver = AdapterSaver(root, CheckpointConfig(), tensors, info, run_name="test")
    saver.save(7, tensors, make_meta(7), durable=True)
    return checkpoint_path(root, 7)


def _made(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    if len(shape) == 1:
        return 0.5 + torch.rand(shape, generator=generator)
    return 0.3 * torch.randn(shape, generator=generator)
