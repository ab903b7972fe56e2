"""What a run with adapters trains, as rows for tables, JSON and the run's record: map by map, layers together."""

from collections.abc import Sequence
from dataclasses import dataclass

from glmforge.config.adapters import adapted, adapted_maps, adapter_parts, is_adapter
from glmforge.config.lora import LoraConfig
from glmforge.config.model import ModelConfig
from glmforge.config.parameters import Shape, parameter_table
from glmforge.plan.counts.parameters import count_parameters


@dataclass(frozen=True)
class MapSummary:
    """All adapters of maps of one name and shape: their number (one for each expert), the tensors they lie in, their
    elements, and the shape [out, in] of such a map."""

    name: str
    adapters: int
    tensors: int
    trained: int
    shape: Shape


@dataclass(frozen=True)
class AdapterSummary:
    """Of a whole model. `share`: trained elements, of those that the model has itself; `saved` are the parameters that
    are trained whole, with their elements."""

    rank: int
    maps: tuple[MapSummary, ...]
    tensors: int
    trained: int
    share: float
    saved: dict[str, int]


def summarise_adapters(config: ModelConfig, lora: LoraConfig) -> AdapterSummary:
    """Raises `ConfigError` for a target that is no map of the model."""
    found: dict[tuple[str, Shape], MapSummary] = {}
    for one in adapted_maps(config, lora):
        name = one.name.removeprefix(f"model.layers.{one.row.layer}.")
        rows = [part.row for part in adapter_parts(one, lora)]
        shape = (one.num_outputs, one.num_inputs)
        known = found.get((name, shape), MapSummary(name, 0, 0, 0, shape))
        found[name, shape] = MapSummary(
            name,
            known.adapters + (one.row.shape[0] if one.row.expert else 1),
            known.tensors + len(rows),
            known.trained + sum(row.size for row in rows),
            shape,
        )
    table = adapted(parameter_table(config), config, lora)
    saved = {row.name: row.size for row in table.trained().values() if row.lr_scale and not is_adapter(row)}
    trained = sum(one.trained for one in found.values()) + sum(saved.values())
    return AdapterSummary(
        rank=lora.rank,
        maps=tuple(found.values()),
        tensors=sum(one.tensors for one in found.values()) + len(saved),
        trained=trained,
        share=trained / count_parameters(config).with_mtp.parameters,
        saved=saved,
    )


def adapter_rows(summary: AdapterSummary) -> list[tuple[str, int, int, int]]:
    """Map, adapters, tensors, trained elements; what is trained whole has none; the last row is all of them."""
    rows = [(one.name, one.adapters, one.tensors, one.trained) for one in summary.maps]
    rows += [(name, 0, 1, size) for name, size in summary.saved.items()]
    return [*rows, ("all", sum(one.adapters for one in summary.maps), summary.tensors, summary.trained)]


def adapter_lines(summary: AdapterSummary) -> Sequence[str]:
    """The same in words, a line each, for the log of a run."""
    lines = [
        f"{one.name} [{one.shape[0]:,} x {one.shape[1]:,}]: rank {summary.rank}, {one.adapters:,} adapters, "
        f"{one.trained:,} in {one.tensors:,} tensors"
        for one in summary.maps
    ]
    lines += [f"{name}: trained whole, {size:,}" for name, size in summary.saved.items()]
    return [
        *lines,
        f"trainable: {summary.trained:,} in {summary.tensors:,} tensors, {summary.share:.3%} of the model",
    ]
