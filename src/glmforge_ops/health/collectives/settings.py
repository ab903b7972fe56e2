"""What is to be measured; checked before a process is started or torch imported."""

import re
from dataclasses import dataclass

from glmforge.errors import ConfigError
from glmforge_ops.health.collectives.kinds import DTYPES

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
MAX_SIZE = 1 << 40
"""Bytes: more than any device has."""
MAX_LOCAL = 512
"""Ranks on one machine: more than that, and the option was meant otherwise."""
_MAX_SIZES = 200


def parse_size(text: str, option: str) -> int:
    """Bytes of "8", "64K", "1M", "2G", as nccl-tests takes them: K is 1,024. Raises `ConfigError`."""
    match = re.fullmatch(r"(\d{1,13})([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE | re.ASCII)
    size = int(match[1]) * _UNITS[match[2].upper()] if match else 0
    if not 0 < size <= MAX_SIZE:
        raise ConfigError(f"{option}: {text[:40]!r} is no size; give bytes from 1 to 1024G, such as 8, 64K, 1M or 2G")
    return size


def message_sizes(smallest: int, largest: int, factor: float) -> list[int]:
    """Bytes from the smallest to the largest, each `factor` times the one before. Raises `ConfigError`."""
    if smallest > largest:
        raise ConfigError(f"--min-bytes {smallest} is more than --max-bytes {largest}: exchange them")
    if not factor > 1:
        raise ConfigError(f"--factor {factor:g} does not increase the size: give more than 1, such as 2")
    sizes = [smallest]
    while (following := max(int(sizes[-1] * factor), sizes[-1] + 1)) <= largest:
        sizes.append(following)
        if len(sizes) > _MAX_SIZES:
            raise ConfigError(f"--factor {factor:g} gives more than {_MAX_SIZES} sizes: increase it")
    return sizes


@dataclass(frozen=True, kw_only=True)
class BenchSettings:
    """One benchmark, the same on all ranks.

    Attributes:
        kinds: keys of `KINDS`.
        sizes: bytes.
        dtype: key of `DTYPES`.
        backend: "nccl" or "gloo".
        iterations, warmup: collectives that are timed in one go, and before that.
        check: whether every element of each result is compared with what it has to be.
        timeout_s: of a collective, and for the ranks to meet.
    """

    kinds: tuple[str, ...]
    sizes: tuple[int, ...]
    dtype: str = "float32"
    backend: str = "gloo"
    iterations: int = 20
    warmup: int = 5
    check: bool = True
    timeout_s: float = 60.0

    @property
    def itemsize(self) -> int:
        return DTYPES[self.dtype][1]


@dataclass(frozen=True, kw_only=True)
class SlowSettings:
    """One search for what is slow, the same on all ranks.

    Attributes:
        backend: "nccl" or "gloo".
        unit: "host": all ranks of a host are measured together; "rank": each by itself.
        slow_below: what reaches less than this share of the others' bandwidth is slow.
        expected_gbs: GB/s that an exchange of two ranks must reach; None compares them with each other.
        exchange_bytes: that two ranks send each other at a time.
        iterations: exchanges of a pair that are timed, of which the fastest counts.
        max_partners: of a host in a round; None is all.
        timeout_s: of an exchange, after which the partner counts as lost.
    """

    backend: str = "gloo"
    unit: str = "host"
    slow_below: float = 0.7
    expected_gbs: float | None = None
    exchange_bytes: int = 8 << 20
    iterations: int = 3
    max_partners: int | None = None
    timeout_s: float = 30.0
