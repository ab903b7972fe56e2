"""Size, perplexity and speed of a model's quantisations, each by an engine that loads it.

    python benchmarks/quantise.py MODEL CHATS.jsonl HELD_OUT.jsonl --quantizer-python P --llama-cpp-python Q

MODEL is a Hugging Face directory, CHATS calibrates, HELD_OUT is scored: conversations of runs/demo/data after
`glmforge demo`. P has llm-compressor, Q llama-cpp-python (see `glmforge.deploy.quantize.environment`). transformers
scores what is a directory, llama.cpp (fp32 cache) what is GGUF; both with one thread. Speed is that of scoring rows,
where transformers unpacks weights while it loads. Size in theory: bits of code and scales on linear maps (in GGUF of
all matrices but the router), the rest as it is kept.
"""

import argparse
import json
import math
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from record import ROOT, write_result

from glmforge.config.chat import ChatConfig
from glmforge.config.load import load_model_config
from glmforge.config.parameters import parameter_table
from glmforge.data.chat.encode import encode
from glmforge.data.chat.read import read_records
from glmforge.data.chat.records import conversation_of
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.deploy.export import export_run, open_source
from glmforge.deploy.gguf import export_gguf
from glmforge.deploy.quantize.calibrated import quantize_calibrated
from glmforge.deploy.quantize.gguf_types import quantize_gguf
from glmforge.deploy.quantize.rounding import Fp8Blocks, Int8Channels
from glmforge.deploy.quantize.streamed import quantize_streamed

PROGRAMS = ROOT / "benchmarks" / "programs"
GROUP = 32  # of the demo's sides, 64 to 448; engines have kernels for 128
ROWS, ROW_TOKENS = 32, 256


def theory_bytes(model: Path, linear_bits: float, kept_bits: float, other_bits: float) -> float:
    """Linear maps, embedding and head, and what is neither (norms, biases, router)."""
    total = 0.0
    for row in parameter_table(load_model_config(model)).values():
        is_linear = "_proj" in row.name and not row.name.endswith("bias")
        is_table = row.name in ("model.embed_tokens.weight", "lm_head.weight")
        bits = linear_bits if is_linear else kept_bits if is_table else other_bits
        total += math.prod(row.shape) * (32 if row.fp32 else bits) / 8
    return total


def make_all(model: Path, chats: Path, out: Path, quantizer: Path, llama_cpp: Path) -> dict[str, dict[str, Any]]:
    """Name -> engine, path, bytes in theory, and what is known of the making."""
    source = open_source(model)
    made: dict[str, dict[str, Any]] = {}
    for dtype in ("fp32", "bf16"):
        bits = 32 if dtype == "fp32" else 16
        path = export_run(model, out / dtype, dtype=dtype).directory
        made[dtype] = {"engine": "transformers", "path": path, "theory": theory_bytes(model, bits, bits, bits)}
    quantize_streamed(source, out / "fp8", Fp8Blocks(GROUP))
    made["fp8"] = {"path": out / "fp8", "theory": theory_bytes(model, 8 + 32 / GROUP**2, 16, 16)}
    quantize_streamed(source, out / "int8", Int8Channels())
    made["int8"] = {"path": out / "int8", "theory": theory_bytes(model, 8, 16, 16)}  # without one scale a row
    for method in ("gptq", "awq"):
        done = quantize_calibrated(
            source,
            out / method,
            method,
            4,
            chats,
            group_size=GROUP,
            num_rows=ROWS,
            num_tokens=ROW_TOKENS,
            python=quantizer,
        )
        made[method] = {"path": out / method, "theory": theory_bytes(model, 4 + 32 / GROUP, 32, 32)}
        made[method] |= {"difference": done.difference, "peak_bytes": done.peak_bytes}
        made[method] |= {"idle_experts": done.experts_without_tokens, "smoothing": done.smoothing_difference}
    bits_of = {"f32": 32.0, "f16": 16.0, "bf16": 16.0, "q8_0": 8.5}
    for kind, bits in bits_of.items():
        path = out / f"{kind}.gguf"
        export_gguf(source, path, type_name=kind)
        made[f"gguf {kind}"] = {"engine": "llama.cpp", "path": path, "theory": theory_bytes(model, bits, bits, 32)}
    for bits in (4, 6):
        types = quantize_gguf(source, out / f"q{bits}.gguf", bits, python=llama_cpp)
        made[f"gguf q{bits}"] = {"engine": "llama.cpp", "path": out / f"q{bits}.gguf", "types": types}
    return made


def score(row: dict[str, Any], asked: Path, scratch: Path, quantizer: Path, llama_cpp: Path) -> dict[str, Any]:
    """Perplexity, accuracy and speed of one form."""
    if row.get("engine") == "llama.cpp":
        answers = scratch / "answers.npz"
        subprocess.run([llama_cpp, PROGRAMS / "llama_cpp_logits.py", row["path"], asked, answers], check=True)
        nll, right, labels, seconds = np.load(answers)["score"].tolist()
    else:
        answers = scratch / "answers.json"
        subprocess.run(
            [quantizer, PROGRAMS / "transformers_nll.py", row["path"], asked, answers], check=True, capture_output=True
        )
        found = json.loads(answers.read_text())
        nll, right, labels, seconds = (found[name] for name in ("nll", "right", "labels", "seconds"))
    return {"perplexity": math.exp(nll / labels), "accuracy": right / labels, "seconds": seconds}


def labelled(file: Path, tokenizer: Tokenizer) -> list[tuple[list[int], list[int]]]:
    """Conversations as ids and labels: what fine-tuning trains on, the answers, is scored."""
    rows = []
    for record in read_records([file]):
        for document in encode(conversation_of(record.parse()), tokenizer, ChatConfig()):
            ids, weights = list(map(int, document.ids)), document.weights
            following = zip(ids[1:], weights[1:], strict=True)
            rows.append((ids, [index if weight > 0 else -100 for index, weight in following] + [-100]))
    return rows


def size_of(path: Path) -> int:
    """Bytes of the tensors' files."""
    return sum(file.stat().st_size for file in ([path] if path.is_file() else path.glob("*.safetensors")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("chats", type=Path)
    parser.add_argument("held_out", type=Path)
    parser.add_argument("--quantizer-python", type=Path, required=True)
    parser.add_argument("--llama-cpp-python", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    pythons = given.quantizer_python, given.llama_cpp_python
    rows = labelled(given.held_out, Tokenizer.load(given.model))
    num_tokens = sum(len(ids) for ids, _ in rows)
    forms: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        asked = Path(scratch) / "asked.json"
        asked.write_text(json.dumps({"score": rows}))
        for name, row in make_all(given.model, given.chats, Path(scratch), *pythons).items():
            row |= score(row, asked, Path(scratch), *pythons) | {"bytes": size_of(row.pop("path"))}
            row["tokens_per_s"] = num_tokens / row.pop("seconds")
            forms[name] = {"engine": "transformers"} | row
            forms[name]["loss"] = row["perplexity"] / forms["fp32"]["perplexity"] - 1
            print(name, json.dumps(forms[name]), flush=True)
    content = {
        "forms": forms,
        "rows": len(rows),
        "tokens": num_tokens,
        "labels": sum(label >= 0 for _, row in rows for label in row),
        "group": GROUP,
    }
    write_result(
        "quantise",
        content,
        code=["src/glmforge/deploy/quantize", "src/glmforge/deploy/gguf.py"],
        libraries=["gguf"],
        out=given.out,
    )


if __name__ == "__main__":
    main()
