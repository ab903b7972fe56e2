"""Whose kernels are taken: those of the device that the tensors lie on, unless a dry run says otherwise.

What a kernel saves for the backward pass and how much is computed at a time differ between devices. A dry run has a
GPU's job laid out on tensors without memory, which lie on the CPU for want of a GPU; it is to count what the GPU's
kernels would take.
"""

from collections.abc import Iterator
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
