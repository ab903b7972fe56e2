"""A checkpoint of adapters from PEFT's files: of one shard, with weights only, at step 0.

Names and packed experts are taken back as `peft` describes them. What PEFT has and this program does not (biases, other
kinds of adapters, ranks that differ between modules) is refused by name.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from glmforge.checkpoint.adapter.base import base_weights
from glmforge.checkpoint.adapter.peft import ADAPTER_FILE, from_packed
from glmforge.checkpoint.adapter.peft_config import DOWN, EXPERTS, PACKED, parse_name
from glmforge.checkpoint.adapter.saver import AdapterSaver
from glmforge.checkpoint.adapter.write import AdapterInfo
from glmforge.checkpoint.format.meta import CheckpointMeta
from glmforge.checkpoint.format.safetensors_header import read_header
from glmforge.checkpoint.format.sharded_adapter import CONFIG_FILE, PARAMETER_PREFIX, PEFT_PREFIX, AdapterSettings
from glmforge.checkpoint.format.store import checkpoint_path
from glmforge.config.checkpoint import CheckpointConfig
from glmforge.errors import CheckpointError
from glmforge.files import read_json, shown

_EXPERTS_TENSOR = re.compile(
    rf"(?P<owner>.+\.{re.escape(EXPERTS)})(?P<inner>\.base_layer)?\.(?P<part>lora_[AB])\.weight"
)


def import_peft(directory: Path, root: Path, *, base: Path | None = None) -> Path:
    """Write `<root>/step-00000000` of the adapter that PEFT has written to `directory`, and return it.

    `base` are the weights that it belongs to, noted by their fingerprint. Raises `CheckpointError`.
    """
    from safetensors.torch import load_file

    if checkpoint_path(root, 0).exists():
        raise CheckpointError(f"{checkpoint_path(root, 0)}: exists; choose another directory")
    config = read_json(directory / CONFIG_FILE, dict, error=CheckpointError)
    settings = _settings(directory / CONFIG_FILE, config)
    read_header(directory / ADAPTER_FILE)
    tensors = dict(_renamed(load_file(directory / ADAPTER_FILE), settings, directory / ADAPTER_FILE, config))
    info = AdapterInfo(settings, "lite", None if base is None else base_weights(base), directory)
    meta = CheckpointMeta(
        step=0,
        phase="",
        tokens_consumed=0,
        samples_consumed={},
        config={"name": directory.name},
        data_fingerprint={},
        tokenizer_fingerprint="",
    )
    saver = AdapterSaver(root, CheckpointConfig(), tensors, info, run_name=directory.name)
    saver.save(0, tensors, meta, durable=True)
    return checkpoint_path(root, 0)


def _settings(file: Path, config: Mapping[str, Any]) -> AdapterSettings:
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if config.get("peft_type") != "LORA" or type(rank) is not int or not isinstance(alpha, int | float) or rank < 1:
        raise CheckpointError(f"{file}: is not of a LoRA adapter (peft_type, r, lora_alpha)")
    for field in ("rank_pattern", "alpha_pattern"):
        if config.get(field):
            raise CheckpointError(f"{file}: {field} is set, and one rank and alpha are for all modules here")
    if config.get("bias", "none") != "none" or config.get("lora_bias"):
        raise CheckpointError(f"{file}: biases are trained as well, which adapters here do not have")
    rslora, dora = config.get("use_rslora", False) is True, config.get("use_dora", False) is True
    return AdapterSettings(rank=rank, alpha=float(alpha), rslora=rslora, dora=dora)


def _renamed(
    tensors: Mapping[str, Tensor], settings: AdapterSettings, file: Path, config: Mapping[str, Any]
) -> Iterator[tuple[str, Tensor]]:
    both = any(".base_layer.lora_" in name for name in tensors)
    targets = json.dumps(config.get("target_parameters") or [])
    for name, tensor in tensors.items():
        if not name.startswith(PEFT_PREFIX):
            raise CheckpointError(f"{file}: {shown(name)} is no name of PEFT's; is it an adapter of a causal LM?")
        parameter = name.removeprefix(PEFT_PREFIX)
        if match := _EXPERTS_TENSOR.fullmatch(parameter):
            key = PACKED if match["inner"] or (not both and PACKED in targets) else DOWN
            part, rows = match["part"], tensor.shape[0] if match["part"] == "lora_A" else tensor.shape[1]
            if rows % settings.rank:
                raise CheckpointError(
                    f"{file}: {shown(name)} is {list(tensor.shape)}, and {rows} is no multiple of r = {settings.rank}"
                )
            unpacked = from_packed(tensor, part, rows // settings.rank)
            yield f"{PARAMETER_PREFIX}{match['owner']}.{part}.{key}", unpacked.contiguous()
            continue
        if parameter.endswith(("lora_embedding_A", "lora_embedding_B", "lora_magnitude_vector")):
            parameter += ".weight"
        if ".lora_" in parameter and parse_name(parameter) is None:
            raise CheckpointError(f"{file}: {shown(name)} is of a kind of adapter that is unknown here")
        yield PARAMETER_PREFIX + parameter, tensor
