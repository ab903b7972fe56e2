"""Hugging Face checkpoints: written from and read into glmforge's packed tensors."""

from glmforge.checkpoint.convert.hf_export import export_hf
from glmforge.checkpoint.convert.hf_import import import_hf

__all__ = ["export_hf", "import_hf"]
