"""A trained run as a Hugging Face directory, and the proof that transformers computes the same with it."""

from dataclasses import dataclass
from logging import ERROR, getLogger
from pathlib import Path

import torch

from glmforge.checkpoint.convert import export_hf
from glmforge.checkpoint.pretrained import load_pretrained, open_checkpoint, tokenizer_directory
from glmforge.extras import needed_for

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


@dataclass(frozen=True)
class Exported:
    """Which checkpoint was written where."""

    checkpoint: Path
    step: int
    directory: Path


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
    """Write the checkpoint `source` (or the newest complete one of a run) as `out_dir`, with the run's tokenizer.

    Args:
        dtype: "bf16" (as published) or "fp32".
        with_mtp: keep the MTP layers.
        duplicate_mtp_head: repeat embedding and head in the MTP layers, as GLM-4.5 does and GLM-4.6 does not.
        tokenizer_dir: instead of the run's own.
        overwrite: replace an earlier export.
    """
    stored = open_checkpoint(source)
    export_hf(
        stored.weights,
        stored.run.model,
        out_dir,
        dtype=DTYPES[dtype],
        with_mtp=with_mtp,
        duplicate_mtp_head=duplicate_mtp_head,
        tokenizer_dir=tokenizer_dir or tokenizer_directory(stored),
        overwrite=overwrite,
    )
    return Exported(stored.path, stored.step, out_dir)


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
