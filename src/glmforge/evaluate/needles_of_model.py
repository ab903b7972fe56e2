"""Needle tests of a model on the disk, in this process."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch

from glmforge.checkpoint.pretrained import load_with_tokenizer
from glmforge.config.parallel import ParallelConfig
from glmforge.data.files import write_whole
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import GlmforgeError
from glmforge.observe.metrics import Record
from glmforge.parallel.model import ParallelModel
from glmforge.parallel.world import World


def load_for_needles(
    source: Path, tokenizer_dir: Path | None, dtype: torch.dtype | None, device: str, longest: int
) -> tuple[ParallelModel, Tokenizer]:
    """A run, a checkpoint or an export and its tokenizer, for tests of up to `longest` tokens.

    Raises:
        GlmforgeError: nothing loadable there, no tokenizer, or the model has fewer positions.
    """
    model, tokenizer = load_with_tokenizer(source, tokenizer_dir, dtype=dtype, device=device)
    if tokenizer is None:
        raise GlmforgeError(f"{source}: has no tokenizer; pass a tokenizer directory (--tokenizer)")
    if longest > model.config.max_position_embeddings:
        raise GlmforgeError(
            f"--length {longest}: {source} has {model.config.max_position_embeddings:,} positions "
            "(max_position_embeddings); use a shorter one"
        )
    return ParallelModel(model.config, World.single(device), ParallelConfig(), [model]), tokenizer


def write_records(records: Sequence[Record], path: Path) -> None:
    """A JSON object for each."""
    write_whole(path, "".join(json.dumps(record) + "\n" for record in records).encode())
