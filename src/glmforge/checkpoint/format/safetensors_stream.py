"""Write a safetensors file tensor by tensor: the header first, from shapes alone, then one tensor after the other.

`safetensors.torch.save_file` needs all tensors of a file in memory. Here there is one at a time.
"""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from glmforge.checkpoint.format.safetensors_header import QUANTISED_TYPES, STATE_TYPES
from glmforge.errors import CheckpointError
from glmforge.runtime.durable import fsync_file
from glmforge.runtime.os_errors import describe_os_error

_TYPE_NAMES = {dtype: name for name, dtype in (STATE_TYPES | QUANTISED_TYPES).items()}
_ALIGNMENT = 8

Spec = tuple[torch.dtype, tuple[int, ...]]


def write_safetensors(file: Path, specs: Mapping[str, Spec], make: Callable[[str], Tensor]) -> None:
    """Write the tensors that `make` makes, by name, as `specs` promises them; on the disk when this returns.

    Raises `CheckpointError` if the operating system refuses.
    """
    header, end = {"__metadata__": {"format": "pt"}}, 0
    entries: dict[str, object] = dict(header)
    for name, (dtype, shape) in specs.items():
        start, end = end, end + math.prod(shape) * dtype.itemsize
        entries[name] = {"dtype": _TYPE_NAMES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    try:
        with file.open("wb") as stream:
            stream.write(len(text).to_bytes(8, "little") + text)
            for name, spec in specs.items():
                tensor = make(name)
                assert (tensor.dtype, tuple(tensor.shape)) == spec, f"{name} differs from its declaration"
                stream.write(tensor.detach().contiguous().flatten().view(torch.uint8).numpy().data)
        fsync_file(file)
    except OSError as error:
        raise CheckpointError(f"{file} was not written: {describe_os_error(error)}") from error
