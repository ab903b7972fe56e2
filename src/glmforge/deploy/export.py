"""A trained model as a Hugging Face directory, and the proof that transformers computes the same with it."""

from collections.abc import Mapping
from dataclasses import dataclass
from logging import ERROR, getLogger
from pathlib import Path

import torch
from torch import Tensor

from glmforge.checkpoint.convert import HfTensors, export_hf
from glmforge.checkpoint.pretrained import load_pretrained, open_checkpoint, tokenizer_directory
from glmforge.config.model import ModelConfig
from glmforge.data.tokens.tokenizer_file import TOKENIZER_FILE
from glmforge.errors import CheckpointError
from glmforge.extras import needed_for
from glmforge.files import kind_of

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass(frozen=True)
class Source:
    """A model to export: weights are read when requested, those of a run with adapters merged.

    Attributes:
        path: the checkpoint, or a Hugging Face directory.
        step: of the checkpoint; None of a Hugging Face directory.
        model: its configuration.
        weights: by the names of the parameter table.
        tokenizer: its directory; None where a Hugging Face directory has none.
    """

    path: Path
    step: int | None
    model: ModelConfig
    weights: Mapping[str, Tensor]
    tokenizer: Path | None


@dataclass(frozen=True)
class Exported:
    """Which checkpoint (`step` None: which Hugging Face directory) was written where."""

    checkpoint: Path
    step: int | None
    directory: Path


def open_source(path: Path) -> Source:
    """Open a Hugging Face directory, or what `find_checkpoint` understands; no tensor is read.

    Raises `CheckpointError`, and `ConfigError` for `config.json`.
    """
    if kind_of(path / "config.json", error=CheckpointError) is None:
        stored = open_checkpoint(path)
        return Source(stored.path, stored.step, stored.run.model, stored.weights, tokenizer_directory(stored))
    weights = HfTensors(path)
    tokenizer = path if (path / TOKENIZER_FILE).is_file() else None
    return Source(path, None, weights.config, weights, tokenizer)


def export_run(
    source: Path,
    out_dir: Path,
    *,
    dtype: str = "bf16",
    with_mtp: bool = True,
    duplicate_mtp_head: bool = False,
    tokenizer_dir: Path | None = None,
    overwrite: bool = False,
) -> Exported:
    """Write the checkpoint `source` (or the newest complete one of a run), or a Hugging Face directory in another type,
    as `out_dir`, with the tokenizer.

    Args:
        dtype: "bf16" (as published), "fp16" or "fp32".
        with_mtp: keep the MTP layers.
        duplicate_mtp_head: repeat embedding and head in the MTP layers, as GLM-4.5 does and GLM-4.6 does not.
        tokenizer_dir: instead of the source's own.
        overwrite: replace an earlier export.
    """
    opened = open_source(source)
    export_hf(
        opened.weights,
        opened.model,
        out_dir,
        dtype=DTYPES[dtype],
        with_mtp=with_mtp,
        duplicate_mtp_head=duplicate_mtp_head,
        tokenizer_dir=tokenizer_dir or opened.tokenizer,
        overwrite=overwrite,
    )
    return Exported(opened.path, opened.step, out_dir)


@dataclass(frozen=True)
class Parity:
    """Largest difference between our logits and transformers', and the largest logit, both fp32."""

    max_difference: float
    max_logit: float

    @property
    def agrees(self) -> bool:
        """Within 1e-4 of the logits' scale: fp32 rounding of differently ordered sums stays far below."""
        return self.max_difference < 1e-4 * max(1.0, self.max_logit)


@torch.no_grad()
def compare_with_transformers(directory: Path, ids_BS: torch.Tensor) -> Parity:
    """Run the export `directory` in fp32 through our model and through transformers' Glm4MoeForCausalLM."""
    for chatty in ("torchao", "torch.utils._pytree"):  # transformers imports torchao, which warns of kernels for GPUs
        getLogger(chatty).setLevel(ERROR)
    with needed_for("the comparison with transformers"):
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging
    logging.set_verbosity_error()  # it reports every MTP tensor as unexpected
    logging.disable_progress_bar()
    theirs = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, trust_remote_code=False, use_safetensors=True
    ).eval()
    ours = load_pretrained(directory, dtype=torch.float32)
    expected_BSV, actual_BSV = theirs(ids_BS).logits, ours.logits(ids_BS)
    return Parity((actual_BSV - expected_BSV).abs().max().item(), expected_BSV.abs().max().item())
