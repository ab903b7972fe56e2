"""One adapter for PEFT from slices, and slices from one of PEFT's.

Linear maps and the router have the same tensors in both. Three things differ:

* Packed experts. PEFT adapts the parameter `experts.gate_up_proj` [E, 2I, D] as a whole (`target_parameters`) and keeps
  A as [E r, D], expert after expert, and B as [2I, r E], the experts of each r beside each other. Adapters of the two
  halves become one of twice the rank: A is A_gate above A_up, B is block-diagonal. As PEFT has one rank for all
  parameters, the others that it adapts so (`down_proj`, the router) are then filled with zeros up to it.
* Where both parameters of the experts are adapted, PEFT nests one wrapper in the other, and the name of the first,
  `gate_up_proj`, gets ".base_layer".
* DoRA's magnitudes and the embedding's adapter are called without ".weight".

No tensor of the model is needed, and one tensor is in memory at a time.

Shapes: E experts, r rank, D hidden_size, I moe_intermediate_size.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from glmforge.checkpoint.adapter.peft_config import (
    DOWN,
    HALVES,
    PACKED,
    AdapterName,
    adapter_names,
    doubles_rank,
    peft_config,
)
from glmforge.checkpoint.convert.hf_directory import copy_tokenizer
from glmforge.checkpoint.format.read import StoredTensors
from glmforge.checkpoint.format.safetensors_stream import Spec, write_safetensors
from glmforge.checkpoint.format.sharded_adapter import (
    CONFIG_FILE,
    PARAMETER_PREFIX,
    PEFT_PREFIX,
    is_sharded_adapter,
    read_description,
)
from glmforge.checkpoint.format.store import make_partial, publish
from glmforge.cluster.durable import write_durably
from glmforge.errors import CheckpointError

ADAPTER_FILE = "adapter_model.safetensors"


class PeftTensor(NamedTuple):
    """A tensor of PEFT's file: how it is made of parameters here."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    make: Callable[[], Tensor]


def export_peft(checkpoint: Path, out_dir: Path) -> None:
    """Write what `peft.PeftModel.from_pretrained` loads: `adapter_model.safetensors`, its configuration, the tokenizer.

    Raises `CheckpointError` if the checkpoint is not whole or not one of adapters, or `out_dir` exists.
    """
    if not is_sharded_adapter(checkpoint):
        raise CheckpointError(f"{checkpoint}: is no checkpoint of adapters; 'glmforge export' is for whole models")
    if out_dir.exists():
        raise CheckpointError(f"{out_dir}: exists; choose another directory")
    description = read_description(checkpoint)
    stored = StoredTensors(checkpoint, PARAMETER_PREFIX)
    tensors = dict(peft_tensors(stored))
    specs: dict[str, Spec] = {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}
    shapes = {PARAMETER_PREFIX + name: tuple(stored.shape(name)) for name in stored}
    partial = make_partial(out_dir)
    write_safetensors(partial / ADAPTER_FILE, specs, lambda name: tensors[name].make())
    config = peft_config(shapes, description.settings, description.base)
    write_durably(partial / CONFIG_FILE, json.dumps(config, indent=2))
    copy_tokenizer(checkpoint, partial)
    publish(partial, out_dir)


def peft_tensors(stored: StoredTensors) -> Iterator[tuple[str, PeftTensor]]:
    """The tensors of PEFT's file by name; each is made when it is asked for."""
    names = adapter_names({PARAMETER_PREFIX + name: () for name in stored})
    double = doubles_rank(names)
    experts: dict[tuple[str, str], dict[str, str]] = {}
    for parameter in stored:
        name = names.get(parameter)
        if name is not None and name.is_experts:
            experts.setdefault((name.owner, name.part), {})[name.key] = parameter
        else:
            filled = double and name is not None and name.is_parameter
            yield PEFT_PREFIX + _peft_name(parameter, name), _same(stored, parameter, name, filled=filled)
    for (owner, part), parameters in experts.items():
        gate_up = {key: parameters[key] for key in (*HALVES, PACKED) if key in parameters}
        both = bool(gate_up) and DOWN in parameters
        if gate_up:
            where = f"{PEFT_PREFIX}{owner}{'.base_layer' if both else ''}.{part}.weight"
            yield where, _packed(stored, gate_up, part, double=double)
        if DOWN in parameters:
            where = f"{PEFT_PREFIX}{owner}.{part}.weight"
            yield where, _packed(stored, {DOWN: parameters[DOWN]}, part, double=double)


def to_packed(halves: Mapping[str, Tensor], part: str, *, double: bool) -> Tensor:
    """PEFT's A [E r', D] or B [out, r' E] of a packed parameter, of the adapters [E, r, D] or [E, out, r] of its maps.

    `halves` has the adapter of the whole parameter, or those of gate and up projection, of which one may be missing.
    With `double` r' is twice r.
    """
    some = next(iter(halves.values()))
    is_a = part == "lora_A"
    if double:
        gate, up = (halves.get(key) for key in HALVES)
        zero = torch.zeros_like(some)
        if gate is None and up is None:
            some = torch.cat([some, zero], dim=1 if is_a else 2)
        else:
            gate, up = (zero if half is None else half for half in (gate, up))
            some = torch.cat([gate, up], dim=1) if is_a else _block_diagonal(gate, up)
    if is_a:
        return some.flatten(0, 1)
    return some.permute(1, 2, 0).flatten(1, 2)


def from_packed(packed: Tensor, part: str, num_experts: int) -> Tensor:
    """The inverse for an adapter of the whole parameter: [E, r, D] or [E, out, r]."""
    if part == "lora_A":
        return packed.view(num_experts, -1, packed.shape[1])
    return packed.view(packed.shape[0], -1, num_experts).permute(2, 0, 1).contiguous()


def _block_diagonal(gate: Tensor, up: Tensor) -> Tensor:
    """[E, I, r] twice -> [E, 2I, 2r]."""
    zero = torch.zeros_like(gate)
    return torch.cat([torch.cat([gate, zero], dim=2), torch.cat([zero, up], dim=2)], dim=1)


def _packed(stored: StoredTensors, parameters: Mapping[str, str], part: str, *, double: bool) -> PeftTensor:
    name = next(iter(parameters.values()))
    shape, dtype = tuple(stored.shape(name)), stored.dtype(name)
    with torch.device("meta"):
        halves = {key: torch.empty(shape, dtype=dtype) for key in parameters}
        packed = to_packed(halves, part, double=double)
    return PeftTensor(
        tuple(packed.shape),
        dtype,
        lambda: to_packed({key: stored[name] for key, name in parameters.items()}, part, double=double),
    )


def _same(stored: StoredTensors, parameter: str, name: AdapterName | None, *, filled: bool) -> PeftTensor:
    """The tensor itself; `filled`, with zeros up to twice the rank."""
    shape, dtype = tuple(stored.shape(parameter)), stored.dtype(parameter)
    if not filled or name is None:
        return PeftTensor(shape, dtype, lambda: stored[parameter])
    dim = 0 if name.part == "lora_A" else 1

    def make() -> Tensor:
        tensor = stored[parameter]
        return torch.cat([tensor, torch.zeros_like(tensor)], dim=dim)

    return PeftTensor(tuple(2 * n if d == dim else n for d, n in enumerate(shape)), dtype, make)


def _peft_name(parameter: str, name: AdapterName | None) -> str:
    if name is None or name.part in ("lora_A", "lora_B"):
        return parameter
    return parameter.removesuffix(".weight")
