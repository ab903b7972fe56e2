"""The model that the generation benchmarks run: GLM-shaped, 23 million parameters, trained for minutes on real text.

    python benchmarks/generation_model.py                              # into runs/generation
    python benchmarks/generation_model.py --out DIR --steps 600

The text is the running Python's own library, as in `glmforge demo`; a fiftieth of its files is held out, and the
benchmarks take their prompts from there. What a trained model generates is not what a random one does: its choices are
clear, its experts are used unevenly, and drafts are accepted as often as such a model accepts them.

The folder then holds the run (`run`), the model in Hugging Face format in both precisions without its MTP layer
(`hf-fp32`, `hf-bf16`) and the same for llama.cpp (`model-fp32.gguf`, `model-bf16.gguf`).
"""

import argparse
from pathlib import Path

from train_step import CONFIG

from glmforge.config import RunConfig
from glmforge.data.documents.document import split_held_out
from glmforge.data.tokens.bpe import train_tokenizer
from glmforge.data.tokens.tokenize import tokenize_corpus
from glmforge.deploy.export import export_run, open_source
from glmforge.deploy.gguf import export_gguf
from glmforge.recipes.demo.standard_library import standard_library_documents
from glmforge.recipes.train import train

FOLDER = Path("runs/generation")
LLAMA_CPP_PYTHON = "GLMFORGE_LLAMA_CPP_PYTHON"
"""Environment variable: an interpreter with llama-cpp-python."""
DTYPES = ("fp32", "bf16")
HELD_OUT_FRACTION = 0.02
SEQ_LEN, BATCH_SIZE = 256, 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument("--steps", type=int, default=300, help=f"of {SEQ_LEN * BATCH_SIZE:,} tokens")
    args = parser.parse_args()
    if not (args.out / "data" / "held_out.bin").exists():
        write_data(args.out / "data")
    train(run_config(args.out, args.steps))
    for dtype in DTYPES:
        export_run(args.out / "run", args.out / f"hf-{dtype}", dtype=dtype, with_mtp=False, overwrite=True)
    source = open_source(args.out / "hf-fp32")
    for dtype, kind in (("fp32", "f32"), ("bf16", "bf16")):
        export_gguf(source, args.out / f"model-{dtype}.gguf", type_name=kind, with_mtp=False, overwrite=True)


def write_data(folder: Path) -> None:
    """Tokenizer and token shards."""
    training, held_out = split_held_out(standard_library_documents(), HELD_OUT_FRACTION)
    train_tokenizer((document.text for document in training), CONFIG.vocab_size, folder / "tokenizer", overwrite=True)
    for name, documents in (("train", training), ("held_out", held_out)):
        tokenize_corpus(documents, folder / "tokenizer", folder / name, source=name, overwrite=True)


def run_config(folder: Path, steps: int) -> RunConfig:
    """The run; `train` takes it up where it was left."""
    data = folder / "data"
    phase = {"name": "main", "steps": steps, "seq_len": SEQ_LEN, "batch_size": BATCH_SIZE, "router_bias_rate": 1e-2}
    sections = {
        "name": "generation",
        "seed": 1,
        "output_dir": folder / "run",
        "model": CONFIG.model_dump() | {"num_nextn_predict_layers": 1},
        "data": {"tokenizer": data / "tokenizer", "sources": [{"name": "text", "path": data / "train"}]},
        "phases": [phase],
        "optim": {"lr": 1e-2, "min_lr": 1e-4, "warmup_steps": 10, "schedule": "wsd", "decay_share": 0.5},
        "precision": {"compute": "bf16"},
        "checkpoint": {"every_steps": 20, "keep_last": 1},
    }
    return RunConfig.model_validate(sections)


if __name__ == "__main__":
    main()
