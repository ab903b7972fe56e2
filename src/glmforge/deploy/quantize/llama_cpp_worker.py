"""Run by the quantiser's own Python (see `environment`): a GGUF file in another type, by llama.cpp.

    python llama_cpp_worker.py IN.gguf OUT.gguf FTYPE HEAD_TYPE [PATTERN=TYPE ...]

FTYPE, HEAD_TYPE and TYPE are llama.cpp's numbers; PATTERN is a regular expression of tensor names.
"""

import ctypes
import os
import sys

import llama_cpp


def main(source: str, out: str, ftype: str, head_type: str, *overrides: str) -> None:
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.output_tensor_type = int(ftype), int(head_type)
    params.nthread = len(os.sched_getaffinity(0))
    table = (llama_cpp.llama_model_tensor_override * (len(overrides) + 1))()  # ends with an empty entry
    for entry, override in zip(table, overrides, strict=False):
        pattern, kind = override.rsplit("=", 1)
        entry.pattern, entry.type = pattern.encode(), int(kind)
    if overrides:
        params.tt_overrides = ctypes.cast(table, ctypes.POINTER(llama_cpp.llama_model_tensor_override))
    status = llama_cpp.llama_model_quantize(source.encode(), out.encode(), ctypes.byref(params))
    if status != 0:
        sys.exit(f"llama_model_quantize: status {status}")


main(*sys.argv[1:])
