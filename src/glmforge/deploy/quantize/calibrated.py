"""GPTQ and AWQ, whose rounding looks at activations: by llm-compressor, in a process of its own environment.

Here rows of token ids are made of texts, the order is written, and the result completed and compared before it gets its
name: the tokenizer, the MTP layers in full precision, which transformers' model does not have, and an index over all.
The directory is compressed-tensors' `pack-quantized`, which transformers and vLLM read.
"""

import json
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch

from glmforge.checkpoint.convert import PieceSource
from glmforge.checkpoint.convert.hf_directory import copy_tokenizer
from glmforge.checkpoint.convert.hf_names import mtp_prefixes
from glmforge.checkpoint.format.safetensors_stream import write_safetensors
from glmforge.checkpoint.format.store import new_directory
from glmforge.config.model import ModelConfig
from glmforge.data.chat.conversation import Conversation
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.deploy.export import Source, export_run
from glmforge.deploy.quantize.environment import environment_python, run
from glmforge.deploy.quantize.streamed import is_linear, whole_plan, write_index
from glmforge.errors import CheckpointError, DataError
from glmforge.files import parse_json, read_text
from glmforge.runtime.durable import fsync_file, write_durably

_WORKER = Path(__file__).with_name("calibrated_worker.py")
_MTP_FILE = "model-mtp.safetensors"
_MIN_TOKENS, _MAX_BYTES = 8, 1 << 28


class Calibrated(NamedTuple):
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


def calibration_rows(file: Path, tokenizer: Tokenizer, *, num_rows: int, num_tokens: int) -> list[list[int]]:
    """At most `num_rows` rows of at most `num_tokens` ids.

    Args:
        file: JSON lines with `messages` (rendered with the chat template) or `text`; any other file is text, cut into
            rows.

    Raises `DataError` if the file cannot be read, a line is neither, or nothing is left.
    """
    text = read_text(file, error=DataError, max_bytes=_MAX_BYTES)
    if file.suffix == ".jsonl":
        lines = ((number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip())
        made = (_ids(line, tokenizer, f"{file}:{number}")[:num_tokens] for number, line in lines)
    else:
        ids = tokenizer.encode(text)
        made = (ids[first : first + num_tokens] for first in range(0, len(ids), num_tokens))
    rows = list(islice((row for row in made if len(row) >= _MIN_TOKENS), num_rows))
    if not rows:
        raise DataError(f"{file}: has no text of {_MIN_TOKENS} tokens to calibrate on")
    return rows


def _ids(line: str, tokenizer: Tokenizer, place: str) -> list[int]:
    content = parse_json(line, dict, source=place, error=DataError)
    if isinstance(content.get("messages"), list):
        try:
            said = Conversation.from_messages(content["messages"], content.get("tools"), is_prompt=True)
        except DataError as error:
            raise DataError(f"{place}: {error}") from error
        return tokenizer.apply_chat_template(said.messages, said.tools)
    if isinstance(content.get("text"), str):
        return tokenizer.encode(content["text"])
    raise DataError(f"{place}: has neither 'messages' (a list) nor 'text' (a string)")


def _check_groups(config: ModelConfig, group_size: int) -> None:
    inputs = {name: getattr(config, name) for name in ("hidden_size", "moe_intermediate_size", "intermediate_size")}
    inputs["num_attention_heads x head_dim"] = config.num_attention_heads * config.head_dim
    for name, size in inputs.items():
        if size % group_size:
            raise CheckpointError(f"groups of {group_size} do not divide {name} {size:,}; pass another --group-size")


def _complete(directory: Path, source: Source, tokenizer_dir: Path) -> None:
    """Add the tokenizer and the MTP layers, and an index; every tensor of the model is there, as it is or packed.
    Raises `CheckpointError`."""
    copy_tokenizer(tokenizer_dir, directory)
    config: dict[str, Any] = json.loads((directory / "config.json").read_text())
    pieces = {piece.disk_name: piece for shard in whole_plan(source.model).shards for piece in shard}
    prefixes = mtp_prefixes(source.model)
    mtp = {name: piece for name, piece in pieces.items() if prefixes and name.startswith(prefixes)}
    if mtp:
        reader = PieceSource(source.weights)
        specs = {name: (piece.dtype(torch.bfloat16), piece.shape) for name, piece in mtp.items()}
        write_safetensors(directory / _MTP_FILE, specs, lambda name: reader.take(mtp[name]).to(specs[name][0]))
        config["quantization_config"]["ignore"] += [name.removesuffix(".weight") for name in mtp if is_linear(name)]
    config["num_nextn_predict_layers"] = source.model.num_nextn_predict_layers
    write_durably(directory / "config.json", json.dumps(config, indent=2, ensure_ascii=False))
    single = directory / "model.safetensors"
    if mtp and single.exists():  # transformers takes this name for the whole model
        single.rename(directory / "model-00001-of-00001.safetensors")
    for file in directory.glob("*.safetensors"):
        fsync_file(file)
    written, _ = write_index(directory)
    for name in pieces:
        if name not in written and name + "_packed" not in written:
            raise CheckpointError(f"{directory}: {name} is missing from what llm-compressor wrote")
