"""Hugging Face checkpoints: written from and read into glmforge's packed tensors, whole or spread over ranks."""

from glmforge.checkpoint.convert.hf_export import PieceSource, export_hf
from glmforge.checkpoint.convert.hf_export_sharded import export_hf_sharded
from glmforge.checkpoint.convert.hf_import import HfTensors, hf_model_config, import_hf
from glmforge.checkpoint.convert.hf_load import load_hf_into

__all__ = ["HfTensors", "PieceSource", "export_hf", "export_hf_sharded", "hf_model_config", "import_hf", "load_hf_into"]
