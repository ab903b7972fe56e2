"""Which frozen matrices `precision.frozen: nf4` quantises, and the parameters that hold them (QLoRA, Dettmers et al.,
2023, arXiv 2305.14314).

A frozen matrix of a layer of the trunk, in attention, MLP or packed experts, is held as codes of 4 bits, two in a byte,
and a scale for each block of 64 inputs. Both are plain parameters with rows of their own, the codes under the weight's
name: last dim apart they are shaped as the weight, and cut by tp, ep, pp and FSDP as it would be, between blocks only.
So the codes of every layout are those of a single process. The router, embedding, head, norms, biases and MTP layers
stay as they are: together about 2 % of Air, and rounding them costs most.

Scales are bf16. That is exact where the weights are, as the scale of a block is its largest number; and FSDP gathers
floating-point parameters in the compute type, which loses nothing then. They are not quantised once more, which
would save 0.13 bits of the 4.25 per weight and needs a mean over many blocks, of all layouts alike.
"""

from collections.abc import Iterator
from dataclasses import replace

from glmforge.config.parameters import Parameter, ParameterTable

BLOCK = 64
"""Consecutive inputs that share a scale."""

_UNTOUCHED = ".mlp.gate."


def quantised(table: ParameterTable) -> ParameterTable:
    """`table` with the parts of quantised weights in the place of the weights."""
    return ParameterTable(part for row in table.values() for part in (_parts(row) if is_quantised(row) else (row,)))


def is_quantised(row: Parameter) -> bool:
    """Whether the weight of this row is one that is quantised where any are."""
    is_frozen = row.trained and row.lr_scale == 0
    return is_frozen and row.family == "matrix" and row.layer is not None and not row.mtp and _UNTOUCHED not in row.name


def scale_name(name: str) -> str:
    """What the scales of the quantised weight `name` are called."""
    return f"{name}_scale"


def cut_block(table: ParameterTable, tp: int) -> str | None:
    """A weight to be quantised whose inputs on each rank of tp are no whole blocks, or None."""
    for row in filter(is_quantised, table.values()):
        ranks = tp if row.tp_dim == len(row.shape) - 1 else 1
        if row.shape[-1] % (BLOCK * ranks):
            return row.name
    return None


def _parts(row: Parameter) -> Iterator[Parameter]:
    """Zeros until they are loaded."""
    *outer, inputs = row.shape
    yield replace(row, shape=(*outer, inputs // 2), initial="zeros", dtype="uint8")
    yield replace(
        row, name=scale_name(row.name), shape=(*outer, inputs // BLOCK), initial="zeros", expert_parts=(), dtype="bf16"
    )
