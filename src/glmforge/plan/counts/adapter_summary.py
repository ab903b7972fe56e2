"""The adapters of a model as rows for tables and JSON: how many each kind of map gets, and what is trained."""

from dataclasses import dataclass

from glmforge.config.model import ModelConfig
from glmforge.plan.counts.parameters import count_parameters
from glmforge.plan.stages.lora import Lora, adapter_parameters


@dataclass(frozen=True)
class MapSummary:
    """All adapters of maps of one name: their number (one for each expert), the tensors they lie in, and elements."""

    name: str
    adapters: int
    tensors: int
    trained: int


@dataclass(frozen=True)
class AdapterSummary:
    """Of a whole model. `share`: trained elements, of those that the model has itself."""

    rank: int
    maps: tuple[MapSummary, ...]
    tensors: int
    trained: int
    share: float


def summarise_adapters(config: ModelConfig, lora: Lora) -> AdapterSummary:
    """Raises `ConfigError` for a target that is no map of the model."""
    found: dict[str, MapSummary] = {}
    for row in adapter_parameters(config, lora):
        name = row.name.removeprefix(f"model.layers.{row.layer}.").partition(".lora_")[0]
        one = found.get(name, MapSummary(name, 0, 0, 0))
        number = (row.shape[0] if row.expert else 1) * (".lora_A" in row.name)
        found[name] = MapSummary(name, one.adapters + number, one.tensors + 1, one.trained + row.size)
    trained = sum(one.trained for one in found.values())
    return AdapterSummary(
        rank=lora.rank,
        maps=tuple(found.values()),
        tensors=sum(one.tensors for one in found.values()),
        trained=trained,
        share=trained / count_parameters(config).with_mtp.parameters,
    )


def adapter_rows(summary: AdapterSummary) -> list[tuple[str, int, int, int]]:
    """Map, adapters, tensors, trained elements; the last row is all of them."""
    rows = [(one.name, one.adapters, one.tensors, one.trained) for one in summary.maps]
    return [*rows, ("all", sum(one.adapters for one in summary.maps), summary.tensors, summary.trained)]
