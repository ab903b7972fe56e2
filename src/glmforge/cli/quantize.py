"""`glmforge quantize`: a model with its weights in 8 or 4 bits."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from glmforge.deploy.export import Source


class Method(StrEnum):
    """How weights are rounded."""

    awq = "awq"
    gptq = "gptq"
    fp8 = "fp8"
    int8 = "int8"
    gguf = "gguf"


_BITS = {
    Method.awq: (4, 8),
    Method.gptq: (4, 8),
    Method.fp8: (8,),
    Method.int8: (8,),
    Method.gguf: (4, 2, 3, 5, 6, 8),
}
_CALIBRATED = (Method.awq, Method.gptq)


def quantize(
    model: Annotated[
        Path, typer.Argument(help="A run, a step of it (RUN@STEP), a checkpoint, or a Hugging Face directory.")
    ],
    method: Annotated[Method, typer.Option(help="How the weights are rounded.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The directory to write; with gguf the file.")],
    bits: Annotated[int | None, typer.Option(help="Bits of a weight; default: 8 for fp8 and int8, else 4.")] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(help="For awq and gptq: JSON lines with 'messages' or 'text', or a text file."),
    ] = None,
    group_size: Annotated[
        int, typer.Option(min=1, help="Weights that share a scale: of a row, with fp8 of each side of a block.")
    ] = 128,
    rows: Annotated[int, typer.Option(min=1, help="Most rows of calibration.")] = 256,
    row_tokens: Annotated[int, typer.Option(min=8, help="Most tokens of a row of calibration.")] = 512,
    tokenizer: Annotated[Path | None, typer.Option(help="Tokenizer directory; default: the model's own.")] = None,
    python: Annotated[
        Path | None,
        typer.Option(help="Python with llm-compressor or llama-cpp-python; default: installed on first use."),
    ] = None,
) -> None:
    """Write a model with its linear maps in fewer bits; embedding, head, router, norms and MTP layers keep theirs.

    fp8 and int8 need no calibration and no more memory than a matrix. awq and gptq run in llm-compressor, gguf below 8
    bits in llama.cpp, each in an environment of its own. What is written is read again before it gets its name.

    Examples:

        glmforge quantize runs/glm/export --method fp8 --output glm-fp8

        glmforge quantize runs/glm/export --method gptq --bits 4 --calibration chats.jsonl --output glm-gptq

        glmforge quantize runs/glm/export --method gguf --bits 4 --output glm-q4.gguf
    """
    allowed = _BITS[method]
    bits = allowed[0] if bits is None else bits
    if bits not in allowed:
        raise typer.BadParameter(f"{method.value} has {' or '.join(map(str, sorted(allowed)))}", param_hint="--bits")
    if method in _CALIBRATED and calibration is None:
        raise typer.BadParameter(f"{method.value} needs a file of text", param_hint="--calibration")
    if method not in _CALIBRATED and calibration is not None:
        raise typer.BadParameter(f"{method.value} needs no calibration; leave it out", param_hint="--calibration")

    from glmforge.deploy.export import open_source

    source = open_source(model)
    if calibration is not None:
        _calibrated(source, output, method.value, bits, calibration, group_size, rows, row_tokens, tokenizer, python)
    elif method == Method.gguf:
        from glmforge.deploy.quantize.gguf_types import quantize_gguf

        types = quantize_gguf(source, output, bits, tokenizer_dir=tokenizer, python=python)
        typer.echo(f"{output}: {', '.join(f'{count:,} {name}' for name, count in sorted(types.items()))}")
    else:
        _streamed(source, output, method, group_size, tokenizer)


def _streamed(source: "Source", output: Path, method: Method, group_size: int, tokenizer: Path | None) -> None:
    from glmforge.deploy.quantize.rounding import Fp8Blocks, Int8Channels
    from glmforge.deploy.quantize.streamed import quantize_streamed

    rounding = Fp8Blocks(group_size) if method == Method.fp8 else Int8Channels()
    written = quantize_streamed(source, output, rounding, tokenizer_dir=tokenizer)
    typer.echo(f"{output}: {written.num_quantised:,} matrices in 8 bits, {written.num_bytes / 1e9:,.3f} GB")
    if written.kept:
        shown = ", ".join(written.kept[:5]) + (" and more" if len(written.kept) > 5 else "")
        typer.echo(f"in full precision: {shown}")


def _calibrated(
    source: "Source",
    output: Path,
    method: str,
    bits: int,
    calibration: Path,
    group_size: int,
    rows: int,
    row_tokens: int,
    tokenizer: Path | None,
    python: Path | None,
) -> None:
    from glmforge.deploy.quantize.calibrated import quantize_calibrated

    done = quantize_calibrated(
        source,
        output,
        method,
        bits,
        calibration,
        group_size=group_size,
        num_rows=rows,
        num_tokens=row_tokens,
        tokenizer_dir=tokenizer,
        python=python,
    )
    typer.echo(
        f"{output}: {method} in {bits} bits, calibrated on {done.num_tokens:,} tokens in {done.num_rows:,} rows; peak "
        f"memory {done.peak_bytes / 1e9:.2f} GB"
    )
    if done.smoothing_difference is not None:
        typer.echo(f"smoothing changed the logits by {done.smoothing_difference:.1e} of the largest")
    if done.experts_without_tokens:
        names = ", ".join(done.experts_without_tokens)
        typer.echo(f"the router sent no token to: {names}; pass more rows or other text")
