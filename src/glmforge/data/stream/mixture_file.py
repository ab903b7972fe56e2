"""A mixture of token shards as a file that runs build on.

    extends: mixture.yaml

The loader mixes as it reads (`mixture.py`), so mixing copies nothing: the file says what is drawn how often, and how
often each source is passed through for it. What a source may not give because of its cap on epochs, the others give in
proportion.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glmforge.config.tree import dump
from glmforge.data.files import refuse_existing, write_whole
from glmforge.data.stream.caps import SuppliesLackError, share_out
from glmforge.data.tokens.shards import TokenShard
from glmforge.errors import DataError

_LARGEST_MIXTURE = 10**15


@dataclass(frozen=True)
class MixedSource:
    """A source of a mixture.

    Attributes:
        name: of the source.
        prefix: of its token shard.
        num_tokens: tokens that the shard has.
        asked: share of the tokens that was requested.
        tokens: tokens that the mixture takes.
        max_epochs: cap on how often it is passed through, None for none.
    """

    name: str
    prefix: Path
    num_tokens: int
    asked: float
    tokens: int
    max_epochs: float | None

    @property
    def epochs(self) -> float:
        """How often the mixture goes through the source."""
        return self.tokens / self.num_tokens


def plan_mixture(
    inputs: Sequence[Path],
    ratios: Sequence[float] | None = None,
    *,
    tokens: int | None = None,
    max_epochs: Sequence[float] | None = None,
) -> list[MixedSource]:
    """What a mixture of `tokens` tokens takes of each shard.

    Args:
        inputs: prefixes of token shards.
        ratios: share of each, relative to the others; by their sizes if not given.
        tokens: of the whole mixture; as many as the ratios allow within the caps (one epoch by default).
        max_epochs: cap per input, or one for all; default: no cap.

    Raises:
        DataError: numbers that do not fit together, shards of different tokenizers, or too little data.
    """
    shards = [TokenShard(prefix) for prefix in inputs]
    _check_tokenizers(shards)
    names = _names(inputs)
    asked = _shares([float(shard.num_tokens) for shard in shards] if ratios is None else ratios, len(inputs))
    caps = _caps(max_epochs, len(inputs))
    if tokens is None:
        rooms = [shard.num_tokens * (cap or 1.0) for shard, cap in zip(shards, caps, strict=True)]
        tokens = int(min(room / share for room, share in zip(rooms, asked, strict=True)))
    if not 0 < tokens <= _LARGEST_MIXTURE:
        raise DataError(f"tokens {tokens:,}: must be between 1 and {_LARGEST_MIXTURE:,}")
    limits = {
        name: int(shard.num_tokens * cap)
        for name, shard, cap in zip(names, shards, caps, strict=True)
        if cap is not None
    }
    try:
        weights = share_out(dict(zip(names, asked, strict=True)), limits, tokens)
    except SuppliesLackError as error:
        raise DataError(
            f"tokens {tokens:,}: the sources have {error.missing:,} too few within their max_epochs; raise "
            "max_epochs, or lower tokens"
        ) from error
    total = sum(weights.values())
    given = [round(weights.get(name, 0) / total * tokens) for name in names]
    return [
        MixedSource(name, Path(prefix), shard.num_tokens, share, count, cap)
        for name, prefix, shard, share, count, cap in zip(names, inputs, shards, asked, given, caps, strict=True)
    ]


def write_mixture(
    sources: Sequence[MixedSource], tokenizer: Path, out: Path, *, code: Sequence[str] = (), overwrite: bool = False
) -> None:
    """Write the `data` section that draws `sources`; held-out shards that lie beside them come along.

    Raises:
        DataError: `out` exists, or `code` names no source.
    """
    refuse_existing(out, overwrite)
    unknown = set(code) - {source.name for source in sources}
    if unknown:
        raise DataError(f"code: no source '{min(unknown)}': there are {', '.join(source.name for source in sources)}")
    section: dict[str, Any] = {"tokenizer": str(tokenizer), "sources": [_entry(source, code) for source in sources]}
    held_out = [
        {"name": source.name, "path": f"{source.prefix}-held-out"}
        for source in sources
        if Path(f"{source.prefix}-held-out.idx").is_file()
    ]
    if held_out:
        section["held_out"] = held_out
    write_whole(out, dump({"data": section}).encode())


def _entry(source: MixedSource, code: Sequence[str]) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": source.name, "path": str(source.prefix), "weight": source.asked}
    if source.max_epochs is not None:
        entry["max_epochs"] = source.max_epochs
    if source.name in code:
        entry["code"] = True
    return entry


def _check_tokenizers(shards: Sequence[TokenShard]) -> None:
    known = {shard.info.tokenizer_fingerprint: shard.prefix for shard in shards if shard.info is not None}
    if len(known) > 1:
        first, second = list(known.values())[:2]
        raise DataError(f"inputs: {first} and {second} were encoded with different tokenizers; re-encode one")


def _names(inputs: Sequence[Path]) -> list[str]:
    """The last parts of the prefixes, with more of the path where these are equal."""
    parts = [Path(prefix).parts for prefix in inputs]
    if len(set(parts)) < len(parts):
        raise DataError("inputs: the same shard appears twice; list it once with the sum of the ratios")
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["-".join(path[-depth:]).strip("/") for path in parts]
        if len(set(names)) == len(names):
            return names
    raise DataError("inputs: names are not unique; rename a shard")


def _shares(ratios: Sequence[float], count: int) -> list[float]:
    if len(ratios) != count:
        raise DataError(f"ratios: {len(ratios)} for {count} inputs; pass one for each")
    if not all(0 < ratio < float("inf") for ratio in ratios):
        raise DataError("ratios: must be positive numbers; remove sources with ratio 0")
    return [ratio / sum(ratios) for ratio in ratios]


def _caps(max_epochs: Sequence[float] | None, count: int) -> list[float | None]:
    if not max_epochs:
        return [None] * count
    if len(max_epochs) not in (1, count) or not all(cap > 0 for cap in max_epochs):
        raise DataError(f"max_epochs: pass one positive number for all inputs, or {count}")
    return list(max_epochs) if len(max_epochs) == count else [max_epochs[0]] * count
