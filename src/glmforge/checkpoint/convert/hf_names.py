"""Which tensors on disk a GLM checkpoint consists of, derived from the table of those in memory.

In memory the experts of a layer are packed into two tensors, as transformers 5 has them:
`experts.gate_up_proj` `[E, 2I, D]` (gate rows first) and `experts.down_proj` `[E, D, I]`. Published
checkpoints hold three matrices per expert. Everything else has one name in both places. The relation is a
list of `Piece`s, each saying which part of which tensor in memory one tensor on disk is; export and import
walk the same list in opposite directions.

Shapes: D hidden_size, E experts, I moe_intermediate_size.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from glmforge.checkpoint.format.boxes import Box
from glmforge.config.model import ModelConfig
from glmforge.config.parameters import EMBEDDING, HEAD, Parameter, Shape

INDEX_FILE = "model.safetensors.index.json"  # which shard holds which tensor


@dataclass(frozen=True)
class Piece:
    """The tensor `disk_name` on disk is `memory[name][index]`, of this `shape`; `fp32` in files of any type or not."""

    disk_name: str
    name: str
    index: tuple[int | slice, ...]
    shape: Shape
    fp32: bool = False

    def dtype(self, usual: torch.dtype) -> torch.dtype:
        """Its type in files that are otherwise of type `usual`."""
        return torch.float32 if self.fp32 else usual

    @property
    def box(self) -> Box:
        """Where the tensor on disk lies in the one in memory; an expert is a box of size 1 along dim 0."""
        num_fixed = sum(isinstance(part, int) for part in self.index)
        sizes = (1,) * num_fixed + self.shape
        starts = [part if isinstance(part, int) else part.start for part in self.index]
        return Box((*starts, *(0 for _ in sizes[len(starts) :])), sizes)

    def part(self, box: Box) -> tuple[slice, ...]:
        """The index of `box`, a part of `self.box`, in the tensor on disk."""
        index = box.within(self.box)
        return index[len(index) - len(self.shape) :]


def mtp_prefixes(config: ModelConfig) -> tuple[str, ...]:
    """What the names of the multi-token-prediction layers begin with."""
    first = config.num_hidden_layers
    return tuple(f"model.layers.{first + i}." for i in range(config.num_nextn_predict_layers))


def mtp_duplicates(config: ModelConfig) -> dict[str, str]:
    """Disk name -> name of the main embedding and head that GLM-4.5 (not 4.6) repeats in each MTP layer."""
    head = EMBEDDING if config.tie_word_embeddings else HEAD
    return {
        prefix + repeated: name
        for prefix in mtp_prefixes(config)
        for repeated, name in [("embed_tokens.weight", EMBEDDING), ("shared_head.head.weight", head)]
    }


def duplicates(config: ModelConfig) -> dict[str, str]:
    """Disk name -> name of all that files may hold twice: MTP's copies, and the head of tied embeddings."""
    return mtp_duplicates(config) | ({HEAD: EMBEDDING} if config.tie_word_embeddings else {})


def published_pieces(row: Parameter) -> Iterator[Piece]:
    """The tensors on disk that one tensor in memory becomes: three per expert, otherwise itself."""
    if not row.expert_parts:
        yield whole_piece(row)
        return
    module = row.name.rpartition(".")[0]
    num_experts, num_rows, num_columns = row.shape
    part_rows = num_rows // len(row.expert_parts)
    for expert in range(num_experts):
        for index, part in enumerate(row.expert_parts):
            rows = slice(index * part_rows, (index + 1) * part_rows)
            yield Piece(f"{module}.{expert}.{part}", row.name, (expert, rows), (part_rows, num_columns), row.fp32)


def whole_piece(row: Parameter) -> Piece:
    """A tensor that is the same on disk and in memory."""
    return Piece(row.name, row.name, (), row.shape, row.fp32)
