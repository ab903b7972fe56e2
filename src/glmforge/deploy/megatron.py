"""A model from Megatron as a Hugging Face directory, and any of ours, or a Hugging Face Llama, for Megatron."""

import json
from pathlib import Path

from glmforge.checkpoint.convert import HfTensors, export_hf
from glmforge.checkpoint.convert.hf_llama import read_llama
from glmforge.checkpoint.convert.megatron import MegatronTensors, export_megatron
from glmforge.config.load import load_model_config
from glmforge.deploy.export import DTYPES, Source, open_source
from glmforge.runtime.durable import write_durably


def import_megatron(
    source: Path, out_dir: Path, config: Path, *, dtype: str = "bf16", tokenizer_dir: Path | None = None
) -> Path:
    """Write the Megatron checkpoint `source` for Hugging Face; what was read. Raises `CheckpointError`, `ConfigError`.

    `config` is what `load_model_config` takes, or a directory with a Llama's `config.json`, which is kept.
    """
    llama = read_llama(config) if (config / "config.json").is_file() else None
    found = MegatronTensors(source, llama[0] if llama else load_model_config(str(config)))
    export_hf(found, found.config, out_dir, dtype=DTYPES[dtype], tokenizer_dir=tokenizer_dir)
    if llama is not None:
        types = dict.fromkeys(("dtype", "torch_dtype"), str(DTYPES[dtype]).removeprefix("torch."))
        write_durably(out_dir / "config.json", json.dumps(llama[1] | types, indent=2))
    return found.path


def write_for_megatron(source: Path, out_dir: Path, *, dtype: str = "bf16", vocab_multiple: int = 128) -> Path:
    """Write a run's checkpoint, or a Hugging Face GLM or Llama, for Megatron; what was read. See `export_megatron`."""
    llama = read_llama(source) if (source / "config.json").is_file() else None
    opened = open_source(source) if llama is None else Source(source, None, llama[0], HfTensors(source, llama[0]), None)
    export_megatron(opened.weights, opened.model, out_dir, dtype=DTYPES[dtype], vocab_multiple=vocab_multiple)
    return opened.path
