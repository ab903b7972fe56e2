"""GGUF in 2 to 6 bits a weight, by llama.cpp's own K-quants; 8 bits are Q8_0, which the export writes itself.

K-quants code 256 weights of a row together. Where a row is no multiple of 256, llama.cpp takes another type. For the
experts' down projections of GLM-4.5-Air, whose rows have 1,408, we choose it: Q4_0 up to 4 bits, else Q8_0. The head is
Q6_K, which costs little and decides each token.
"""

import os
import socket
from collections import Counter
from pathlib import Path

from glmforge.deploy.export import Source
from glmforge.deploy.gguf import export_gguf
from glmforge.deploy.quantize.environment import environment_python, run
from glmforge.errors import CheckpointError
from glmforge.extras import needed_for
from glmforge.runtime.durable import fsync_directory, fsync_file

FILE_TYPES = {2: "MOSTLY_Q2_K", 3: "MOSTLY_Q3_K_M", 4: "MOSTLY_Q4_K_M", 5: "MOSTLY_Q5_K_M", 6: "MOSTLY_Q6_K"}
"""Bits -> llama.cpp's mixture of types."""

_K_BLOCK = 256
_WORKER = Path(__file__).with_name("llama_cpp_worker.py")


def quantize_gguf(
    source: Source, out: Path, bits: int, *, tokenizer_dir: Path | None = None, python: Path | None = None
) -> dict[str, int]:
    """Write the model `source` as the GGUF file `out`; type -> number of tensors.

    Args:
        bits: 8, or one of `FILE_TYPES`.
        tokenizer_dir: instead of the source's own.
        python: of an environment with llama-cpp-python; default: one made on first use.

    Beside `out` there is room needed for the model in bf16 meanwhile. Raises `CheckpointError`, and `GlmforgeError` if
    llama.cpp fails.
    """
    with needed_for("quantisation to GGUF"):
        from gguf import GGMLQuantizationType, GGUFReader, LlamaFileType
    if out.exists():
        raise CheckpointError(f"{out}: exists; choose another file")
    if bits == 8:
        export_gguf(source, out, type_name="q8_0", tokenizer_dir=tokenizer_dir)
        return dict(Counter(tensor.tensor_type.name for tensor in GGUFReader(out).tensors))
    # llama.cpp tries no other type for the head where this one does not fit
    head = (
        "Q6_K" if source.model.hidden_size % _K_BLOCK == 0 else "Q8_0" if source.model.hidden_size % 32 == 0 else "F16"
    )
    fits = source.model.moe_intermediate_size % _K_BLOCK == 0
    down = [] if fits else [f"ffn_down_exps={int(GGMLQuantizationType['Q4_0' if bits <= 4 else 'Q8_0'])}"]
    numbers = int(LlamaFileType[FILE_TYPES[bits]]), int(GGMLQuantizationType[head])
    python = python or environment_python("llama.cpp")
    marks = f"{socket.gethostname()}-{os.getpid()}"
    full, partial = (out.with_name(f".{out.name}.{kind}-{marks}") for kind in ("full", "partial"))
    try:
        export_gguf(source, full, type_name="bf16", tokenizer_dir=tokenizer_dir)
        command = [str(python), str(_WORKER), str(full), str(partial), *map(str, numbers), *down]
        run(command, "llama.cpp failed", "see what it said")
        expected = {tensor.name: tensor.shape.tolist() for tensor in GGUFReader(full).tensors}
        found = GGUFReader(partial).tensors
        if {tensor.name: tensor.shape.tolist() for tensor in found} != expected:
            raise CheckpointError(f"{partial}: does not have the tensors of the model; the disk may be full")
        fsync_file(partial)
        partial.rename(out)
        fsync_directory(out.parent)
    finally:
        full.unlink(missing_ok=True)
        partial.unlink(missing_ok=True)
    return dict(Counter(tensor.tensor_type.name for tensor in found))
