"""How many samples each source gives when some may not give their share.

What a source's weight asks beyond its room goes to the others in proportion to their weights, which may fill up the
next one: water-filling. The result is whole numbers that add up to the samples requested, because a mixture of whole
weights keeps them exactly.
"""

from collections.abc import Mapping
from fractions import Fraction

Weights = dict[str, float]


class SuppliesLackError(Exception):
    """All sources together have too few samples; `missing` is by how many samples."""

    def __init__(self, missing: int) -> None:
        super().__init__(f"{missing:,} samples too few")
        self.missing = missing


def share_out(weights: Mapping[str, float], rooms: Mapping[str, int], num_samples: int) -> Weights:
    """Weights that keep every source within its room over `num_samples` samples.

    Args:
        weights: positive, by source.
        rooms: samples that a source may give; a source not named here may give any number.
        num_samples: samples that all give together.

    Returns:
        `weights` themselves if no room is too small; otherwise the whole number of samples of each source, without
        those that give none.

    Raises:
        SuppliesLackError: the rooms add up to less than `num_samples`.
    """
    full: dict[str, int] = {}
    while True:
        shares = proportions({name: weight for name, weight in weights.items() if name not in full})
        left = num_samples - sum(full.values())
        over = {name: rooms[name] for name, share in shares.items() if name in rooms and share * left > rooms[name]}
        if not over:
            break
        full |= over
    if left and not shares:
        raise SuppliesLackError(left)
    if not full:
        return dict(weights)
    counts = full | _whole_parts(shares, left)
    return {name: counts[name] for name in weights if counts[name]}


def _whole_parts(shares: Mapping[str, Fraction], total: int) -> dict[str, int]:
    """Each share of `total`, rounded so that they add up to it: up where the fraction is largest."""
    parts = {name: int(share * total) for name, share in shares.items()}
    by_fraction = sorted(shares, key=lambda name: (parts[name] - shares[name] * total, name))
    for name in by_fraction[: total - sum(parts.values())]:
        parts[name] += 1
    return parts


def proportions(weights: Mapping[str, float]) -> dict[str, Fraction]:
    """Weights that add up to one, exactly."""
    total = sum(map(Fraction, weights.values()))
    return {name: Fraction(weight) / total for name, weight in weights.items()}


def same_proportions(first: Mapping[str, float], second: Mapping[str, float]) -> bool:
    """Whether two sets of weights ask for the same mixture."""
    return proportions(first) == proportions(second)
