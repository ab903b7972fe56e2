"""An adapter for a model that is loaded, from wherever it lies: a PEFT directory, a run with adapters, its checkpoint.

A checkpoint says which base weights it was trained on, and is refused beside others. PEFT's files do not say so; of
them names and shapes are compared with the model's.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from glmforge.checkpoint.adapter.base import base_weights, check_base
from glmforge.checkpoint.adapter.find import check_adapter, find_adapter
from glmforge.checkpoint.adapter.from_peft import lora_of, read_peft
from glmforge.checkpoint.adapter.peft_settings import is_peft
from glmforge.checkpoint.find import find_checkpoint
from glmforge.checkpoint.format.read import StoredTensors
from glmforge.checkpoint.format.sharded_adapter import PARAMETER_PREFIX, BaseWeights
from glmforge.config.adapters import table_with
from glmforge.config.lora import LoraConfig
from glmforge.config.model import ModelConfig
from glmforge.errors import CheckpointError
from glmforge.files import shown


class Adapter(NamedTuple):
    """The section `lora` that it was trained with, and by our names what was trained: all finite."""

    lora: LoraConfig
    tensors: dict[str, Tensor]


def open_adapter(source: Path, model: ModelConfig, base: Callable[[], BaseWeights]) -> Adapter:
    """The adapter in `source`, for a model of these sizes.

    Args:
        base: identifies the model's weights (`weights_of`); asked only if the adapter says what it was trained on.

    Raises:
        GlmforgeError: no adapter there, a damaged one, or one of another model.
    """
    if is_peft(source):
        lora = lora_of(source, model)
        return Adapter(lora, dict(read_peft(source, model, lora)))
    path, description = find_adapter(source)
    check_adapter(path)
    table, stored = table_with(model, description.lora), StoredTensors(path, PARAMETER_PREFIX)
    tensors = {name: stored[name] for name in stored}
    wanted = {row.name: row.shape for row in table.trained().values() if row.lr_scale}
    if wanted != {name: tuple(tensor.shape) for name, tensor in tensors.items()}:
        raise CheckpointError(f"{path}: has adapters of a model of other sizes; use one that was trained on this base")
    if odd := next((name for name, tensor in tensors.items() if not tensor.isfinite().all()), None):
        raise CheckpointError(f"{path}: {shown(odd)} contains non-finite values")
    check_base(path, description.base, base())
    return Adapter(description.lora, tensors)


def weights_of(source: Path) -> BaseWeights:
    """What identifies the weights that `load_pretrained` loads from a directory. Reads all of them."""
    return base_weights(source if (source / "config.json").is_file() else find_checkpoint(source))
