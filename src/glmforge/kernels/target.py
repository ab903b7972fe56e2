"""Whose kernels are taken: those of the device that the tensors lie on, unless a dry run says otherwise.

What a kernel saves for the backward pass and how much is computed at a time differ between devices. A dry run has a
GPU's job laid out on tensors without memory, which lie on the CPU for lack of a GPU; it is to count what the GPU's
kernels would take.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

_assumed: list[str] = []


def kernel_device(device: torch.device) -> str:
    """The type of device whose kernels and sizes are to be taken for tensors on `device`."""
    return _assumed[-1] if _assumed else device.type


@contextmanager
def kernels_of(device_type: str) -> Iterator[None]:
    """Take another device's kernels, although the tensors lie elsewhere; they must be without data."""
    _assumed.append(device_type)
    try:
        yield
    finally:
        _assumed.pop()


def automatic(operation: str, device_type: str, dtype: torch.dtype) -> str:
    """The implementation of an operation where none is named and nothing has been measured (`kernels.choice`)."""
    on_cpu = device_type == "cpu"
    if operation == "attention":
        return "documents" if on_cpu else "varlen" if dtype.itemsize == 2 else "flex"
    if operation == "experts":
        return "sliced" if on_cpu else "grouped"
    return "plain"


def unknown_implementation(operation: str, name: str, known: Iterable[str]) -> ValueError:
    """What to raise where a kernel is called with a name that it does not have."""
    return ValueError(f"{operation}: unknown implementation {name!r}; choose one of {', '.join(known)}")
