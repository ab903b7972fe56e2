"""A model from wherever its weights lie: a preset, a run, one of its checkpoints, or a Hugging Face directory."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from glmforge.checkpoint.convert import import_hf
from glmforge.checkpoint.meta import META_FILE, read_meta
from glmforge.checkpoint.read import StoredTensors
from glmforge.checkpoint.store import latest_checkpoint, list_checkpoints
from glmforge.config.load import load_model_config
from glmforge.config.model import ModelConfig
from glmforge.config.presets import preset_names
from glmforge.config.schema import RunConfig
from glmforge.errors import CheckpointError
from glmforge.files import kind_of, shown
from glmforge.model.transformer import GlmMoe

MODEL_PREFIX = "model."


@dataclass(frozen=True)
class StoredModel:
    """The model part of a training checkpoint, read tensor by tensor when asked for.

    Attributes:
        path: the checkpoint directory.
        step: optimizer steps done.
        run: the configuration it was trained with.
        weights: parameter and buffer names to tensors (fp32).
    """

    path: Path
    step: int
    run: RunConfig
    weights: Mapping[str, Tensor]


def open_checkpoint(path: Path) -> StoredModel:
    """Open a checkpoint directory, or the newest whole one of a run directory. Raises `CheckpointError`."""
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such directory; give a run, a checkpoint or an export")
    for root in (path, path / "checkpoints"):
        if not (path / META_FILE).is_file() and list_checkpoints(root):
            path = latest_checkpoint(root) or path
    if not (path / META_FILE).is_file():
        raise CheckpointError(
            f"{path}: holds neither checkpoints nor a Hugging Face model (config.json); give a run, a checkpoint or "
            "an export"
        )
    meta = read_meta(path)
    run = RunConfig.model_validate(meta.config)
    return StoredModel(path, meta.step, run, StoredTensors(path, MODEL_PREFIX))


def load_pretrained(
    source: str | Path, *, dtype: torch.dtype | None = None, device: torch.device | str = "cpu"
) -> GlmMoe:
    """A model ready for `logits` and `generate`.

    Args:
        source: a preset's name (random weights of seed 0), a run directory (its newest whole checkpoint), one
            checkpoint, or a directory in Hugging Face format.
        dtype: of the weights and activations; None keeps the stored one (fp32 for presets and checkpoints). Router
            biases stay fp32.
        device: where the weights go.

    Raises:
        CheckpointError: nothing loadable there, or what is there is damaged.
    """
    if str(source) in preset_names("model"):
        model = GlmMoe.create(load_model_config(str(source)))
        return _finish(model.config, model.state_dict().items(), dtype, device)
    path = Path(source)
    if kind_of(path / "config.json", error=CheckpointError) is not None:
        config, tensors = import_hf(path, dtype=dtype)
        return _finish(config, tensors, dtype, device)
    if kind_of(path, error=CheckpointError) is None:
        presets = ", ".join(preset_names("model"))
        raise CheckpointError(f"{shown(path)}: no such directory, and no preset of that name; presets: {presets}")
    stored = open_checkpoint(path)
    return _finish(stored.run.model, stored.weights.items(), dtype, device)


def _finish(
    config: ModelConfig,
    tensors: Iterable[tuple[str, Tensor]],
    dtype: torch.dtype | None,
    device: torch.device | str,
) -> GlmMoe:
    with torch.device("meta"):
        model = GlmMoe(config)
    state = {
        name: tensor.to(device, None if name.endswith("e_score_correction_bias") else dtype) for name, tensor in tensors
    }
    model.load_state_dict(state, assign=True)
    model.compute_dtype = state["model.embed_tokens.weight"].dtype
    return model.eval()
