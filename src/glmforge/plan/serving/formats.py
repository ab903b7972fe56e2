"""The formats in which weights and caches are served, and the bytes that they take.

Bits are those of an element with its share of the scales. What engines leave alone stays in bf16: routers, norms and
biases always, embedding and head unless the format is one of llama.cpp's, which quantises them too. Correction biases
are fp32. Files of llama.cpp mix formats, so that theirs are larger by a few percent than one format throughout.
"""

from typing import Literal, NamedTuple, get_args

from glmforge.config.model import ModelConfig
from glmforge.config.parameters import Parameter, parameter_table
from glmforge.errors import ConfigError
from glmforge.plan.counts.memory import kv_cache_bytes_per_token

CacheFormat = Literal["bf16", "fp8"]
CACHE_FORMATS: tuple[CacheFormat, ...] = get_args(CacheFormat)

_BF16, _FP32 = 2, 4


class WeightFormat(NamedTuple):
    """How linear maps are stored.

    Attributes:
        bits: of an element, with its share of the scales.
        has_tables: whether embedding and head are stored so too.
        is_fp8: whether products run at the device's fp8 rate, if it has one; otherwise they run in bf16.
    """

    name: str
    bits: float
    has_tables: bool
    is_fp8: bool
    source: str


WEIGHT_FORMATS = (
    WeightFormat("bf16", 16, True, False, "as trained"),
    WeightFormat("fp8", 8 + 32 / 128**2, False, True, "an fp32 scale for each 128 x 128"),
    WeightFormat("int8", 8 + 16 / 4096, False, False, "a bf16 scale for each row"),
    WeightFormat("int4", 4 + 16 / 128, False, False, "GPTQ or AWQ, symmetric, a bf16 scale for each 128 of a row"),
    WeightFormat("mxfp4", 4 + 8 / 32, False, False, "an 8-bit scale for each 32"),
    WeightFormat("q8_0", 8.5, True, False, "llama.cpp: blocks of 32, 34 bytes each"),
    WeightFormat("q4_0", 4.5, True, False, "llama.cpp: blocks of 32, 18 bytes each"),
    WeightFormat("q4_k", 4.5, True, False, "llama.cpp: blocks of 256, 144 bytes each"),
)


class WeightBytes(NamedTuple):
    """Of a whole model, by how often they are read: one token reads `common` and K of E experts of each layer.

    `embedding` is looked up only. `mtp` and `mtp_experts` are read by speculation alone; with the head they make a
    draft.
    """

    common: float
    experts: float
    head: float
    embedding: float
    mtp: float
    mtp_experts: float

    @property
    def total(self) -> float:
        return sum(self)


def find_format(name: str) -> WeightFormat:
    """Raises `ConfigError` for an unknown name."""
    for row in WEIGHT_FORMATS:
        if row.name == name.lower():
            return row
    raise ConfigError(
        f"--weights: unknown format '{name}'; choose one of {', '.join(row.name for row in WEIGHT_FORMATS)}"
    )


def find_cache_format(name: str) -> CacheFormat:
    """Raises `ConfigError` for an unknown name."""
    if name not in CACHE_FORMATS:
        raise ConfigError(f"--cache: unknown format '{name}'; choose one of {', '.join(CACHE_FORMATS)}")
    return CACHE_FORMATS[CACHE_FORMATS.index(name)]


def weight_bytes(model: ModelConfig, stored: WeightFormat) -> WeightBytes:
    """A tied head is the embedding, and counts as the head."""
    sizes = dict.fromkeys(WeightBytes._fields, 0.0)
    for row in parameter_table(model).values():
        part = "experts" if row.expert else "common"
        if row.family in ("embedding", "head"):
            part = "head" if row.family == "head" or model.tie_word_embeddings else "embedding"
        elif row.mtp:
            part = "mtp_experts" if row.expert else "mtp"
        sizes[part] += row.size * _element_bytes(row, stored)
    return WeightBytes(**sizes)


def cache_bytes_per_token(model: ModelConfig, stored: CacheFormat, *, with_mtp: bool = False) -> float:
    """Of keys and values in all layers; speculation keeps those of the MTP layers too."""
    layers = model.num_hidden_layers + model.num_nextn_predict_layers * with_mtp
    size = kv_cache_bytes_per_token(model) * layers / model.num_hidden_layers
    return size / 2 if stored == "fp8" else size


def _element_bytes(row: Parameter, stored: WeightFormat) -> float:
    if row.fp32:
        return _FP32
    is_table = row.family in ("embedding", "head")
    if row.family == "vector" or row.name.endswith("mlp.gate.weight") or (is_table and not stored.has_tables):
        return _BF16
    return stored.bits / 8
