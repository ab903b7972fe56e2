"""GPTQ and AWQ, whose rounding looks at activations: by llm-compressor, in a process of its own environment.

Here the order is written, and the result completed and compared before it gets its name: the tokenizer, the MTP layers
in full precision, which transformers' model does not have, and an index over all. The directory is compressed-tensors'
`pack-quantized`, which transformers and vLLM read.
"""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from glmforge.checkpoint.convert import PieceSource
from glmforge.checkpoint.convert.hf_directory import copy_tokenizer, plan_export
from glmforge.checkpoint.convert.hf_names import INDEX_FILE, Piece, mtp_prefixes
from glmforge.checkpoint.format.safetensors_header import QUANTISED_TYPES, read_header
from glmforge.checkpoint.format.safetensors_stream import write_safetensors
from glmforge.checkpoint.format.store import new_directory
from glmforge.config.model import ModelConfig
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.deploy.export import Source, export_run
from glmforge.deploy.quantize.calibration import calibration_rows
from glmforge.deploy.quantize.environment import environment_python, run
from glmforge.deploy.quantize.streamed import is_linear
from glmforge.errors import CheckpointError
from glmforge.runtime.durable import fsync_file, write_durably

_WORKER = Path(__file__).with_name("calibrated_worker.py")
_MTP_FILE = "model-mtp.safetensors"


@dataclass(frozen=True)
class Calibrated:
    """What is known of a calibrated model.

    Attributes:
        num_rows: rows of calibration, and `num_tokens` in them.
        experts_without_tokens: experts that the router sent nothing to; they were calibrated on all tokens like the
            others.
        peak_bytes: memory of the quantiser.
        difference: of logits read again to those before it was written, in units of the largest.
        smoothing_difference: of logits after AWQ's smoothing to those before it; None with GPTQ.
    """

    num_rows: int
    num_tokens: int
    experts_without_tokens: list[str]
    peak_bytes: int
    difference: float
    smoothing_difference: float | None = None


def quantize_calibrated(
    source: Source,
    out_dir: Path,
    method: str,
    bits: int,
    calibration: Path,
    *,
    group_size: int = 128,
    num_rows: int = 256,
    num_tokens: int = 512,
    tokenizer_dir: Path | None = None,
    python: Path | None = None,
) -> Calibrated:
    """Write the model `source` to `out_dir` with its linear maps in `bits` bits.

    Args:
        method: "gptq" or "awq".
        calibration: a file of `calibration_rows`.
        group_size: weights of a row that share a scale.
        num_rows: at most; of `num_tokens` tokens at most.
        tokenizer_dir: instead of the source's own.
        python: of an environment with llm-compressor; default: one made on first use.

    Raises `CheckpointError`, `DataError` for the calibration file, and `GlmforgeError` if llm-compressor fails.
    """
    _check_groups(source.model, group_size)
    directory = tokenizer_dir or source.tokenizer
    if directory is None:
        raise CheckpointError(f"{source.path}: has no tokenizer to calibrate with; pass one with --tokenizer")
    tokenizer = Tokenizer.load(directory)
    rows = calibration_rows(calibration, tokenizer, num_rows=num_rows, num_tokens=num_tokens)
    python = python or environment_python("llm-compressor")
    with new_directory(out_dir) as partial, tempfile.TemporaryDirectory(dir=out_dir.parent) as scratch:
        model = source.path
        if source.step is not None:
            model = export_run(source.path, Path(scratch) / "model", tokenizer_dir=directory).directory
        order = {
            "model": str(model.resolve()),
            "out": str(partial.resolve()),
            "method": method,
            "bits": bits,
            "group_size": group_size,
            "keep": ["lm_head", r"re:.*mlp\.gate$"],
            "rows": rows,
            "report": str(Path(scratch).resolve() / "report.json"),
        }
        order_file = Path(scratch) / "order.json"
        order_file.write_text(json.dumps(order))
        run([str(python), str(_WORKER), str(order_file)], "llm-compressor failed", "see what it said")
        report = json.loads(Path(str(order["report"])).read_text())
        _complete(partial, source, directory)
    return Calibrated(num_rows=len(rows), num_tokens=sum(map(len, rows)), **report)


def _check_groups(config: ModelConfig, group_size: int) -> None:
    inputs = {
        "hidden_size": config.hidden_size,
        "moe_intermediate_size": config.moe_intermediate_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads x head_dim": config.num_attention_heads * config.head_dim,
    }
    for name, size in inputs.items():
        if size % group_size:
            raise CheckpointError(f"groups of {group_size} do not divide {name} {size:,}; pass another --group-size")


def _complete(directory: Path, source: Source, tokenizer_dir: Path) -> None:
    copy_tokenizer(tokenizer_dir, directory)
    config: dict[str, Any] = json.loads((directory / "config.json").read_text())
    pieces = _mtp_pieces(source)
    if pieces:
        reader = PieceSource(source.weights)
        tensors = {piece.disk_name: piece for piece in pieces}
        specs = {name: (piece.dtype(torch.bfloat16), piece.shape) for name, piece in tensors.items()}
        write_safetensors(directory / _MTP_FILE, specs, lambda name: reader.take(tensors[name]).to(specs[name][0]))
        modules = [name.removesuffix(".weight") for name in tensors if is_linear(name)]
        config["quantization_config"]["ignore"] += modules
    config["num_nextn_predict_layers"] = source.model.num_nextn_predict_layers
    write_durably(directory / "config.json", json.dumps(config, indent=2, ensure_ascii=False))
    _write_index(directory, source)


def _mtp_pieces(source: Source) -> list[Piece]:
    prefixes = mtp_prefixes(source.model)
    plan = plan_export(
        source.model, dtype=torch.bfloat16, with_mtp=True, duplicate_mtp_head=False, max_shard_bytes=1 << 62
    )
    return [piece for shard in plan.shards for piece in shard if prefixes and piece.disk_name.startswith(prefixes)]


def _write_index(directory: Path, source: Source) -> None:
    """Over all shards; every tensor of the model is there, as it is or packed. Raises `CheckpointError`."""
    files = sorted(directory.glob("*.safetensors"))
    if not (directory / INDEX_FILE).exists() and len(files) > 1:  # transformers takes this name for the whole model
        files[files.index(directory / "model.safetensors")] = (directory / "model.safetensors").rename(
            directory / "model-00001-of-00001.safetensors"
        )
    places = {name: file.name for file in files for name in read_header(file, QUANTISED_TYPES)}
    plan = plan_export(
        source.model, dtype=torch.bfloat16, with_mtp=True, duplicate_mtp_head=False, max_shard_bytes=1 << 62
    )
    for piece in (piece for shard in plan.shards for piece in shard):
        if piece.disk_name not in places and piece.disk_name + "_packed" not in places:
            raise CheckpointError(f"{directory}: {piece.disk_name} is missing from what llm-compressor wrote")
    for file in files:
        fsync_file(file)
    total = sum(file.stat().st_size for file in files)
    write_durably(
        directory / INDEX_FILE,
        json.dumps({"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}, indent=2),
    )
