"""LoRA against full fine-tuning on real instructions: held-out loss, what general text loses, the experts' load.

    python benchmarks/lora_instructions.py                            # a quarter of an hour on two quiet cores
    python benchmarks/lora_instructions.py --directory runs/lora      # kept, and continued if it was interrupted

As in `sft.py` the demo's model is trained on Python sources, and every tenth record of Alpaca and Glaive is held out.
The model is exported as a Hugging Face directory in bf16, and every way of `WAYS` goes on from there, with the same
samples, schedule and number of steps. The load of the experts is what the tokens of the held-out conversations choose:
before, and after with the adapters merged. "Max over mean" is 1 and the entropy, over that of equal shares, is 1 where
all experts of a layer are chosen equally often. Results are in `results/lora_instructions.json`.
"""

import json
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from record import write_result
from sft import SEQ_LEN, chat_files, held_out_prompts, parse_options, prepared, train_base

import glmforge
from glmforge.checkpoint.pretrained import load_pretrained, load_tokenizer
from glmforge.config.load import load_model_config
from glmforge.config.parameters import parameter_table
from glmforge.config.schema import RunConfig
from glmforge.data.chat.conversation import Conversation
from glmforge.deploy.export import export_run
from glmforge.observe.balance import balance_metrics
from glmforge.observe.record_files import read_jsonl
from glmforge.observe.run import RunDirectory, read_run
from glmforge.report.overfitting import find_overfitting

CODE = ["benchmarks/sft.py", "src/glmforge/adapt", "src/glmforge/objectives", "src/glmforge/data/chat"]
STEPS, EVALUATIONS = 96, 6
EVALUATED_LABELS = 8_192
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
WAYS: dict[str, dict[str, Any]] = {
    "full": {},
    "attention": {"lora": {"rank": 16, "targets": ATTENTION}},
    "attention and experts": {"lora": {"rank": 16, "targets": [*ATTENTION, "experts"]}},
}
"""What differs. Muon trains whole matrices and AdamW adapters, at the same rate: the defaults of each."""


def run_config(directory: Path, way: str, steps: int) -> RunConfig:
    """A tenth of the tokens is general text."""
    base, text = directory / "hf", {"name": "text", "path": str(directory / "train")}
    sections = {
        "name": way.replace(" ", "-"),
        "stage": "sft",
        "output_dir": str(directory / way.replace(" ", "-")),
        "init_from": str(base),
        "model": load_model_config(base).model_dump(mode="json"),
        "data": {
            "tokenizer": str(base),
            "sources": [*chat_files(directory, "train"), text],
            "held_out": [*chat_files(directory, "held-out"), text | {"path": str(directory / "held-out")}],
        },
        "phases": [
            {
                "name": "sft",
                "steps": steps,
                "seq_len": SEQ_LEN,
                "batch_size": 2,
                "sources": {"alpaca": 0.5, "glaive": 0.4, "text": 0.1},
            }
        ],
        "optim": {"lr": 5e-3, "min_lr": 1e-4, "warmup_steps": 10},
        "precision": {"compute": "bf16"},
        "checkpoint": {"every_steps": max(1, steps // 4), "keep_last": 1},
        "observe": {
            "evaluate_every": max(1, steps // EVALUATIONS),
            "evaluate_tokens": EVALUATED_LABELS,
            "samples": None,
            "tensorboard": False,
            "progress": False,
        },
    }
    return RunConfig.model_validate(sections | WAYS[way])


def go_on(directory: Path, way: str, steps: int) -> dict[str, Any]:
    """Fine-tune in one way; what came of it."""
    config = run_config(directory, way, steps)
    glmforge.train(config)
    run = RunDirectory(config.output_dir)
    log = read_run(config.output_dir)
    return {
        "trained": num_trained(config, run),
        "curves": curves(read_jsonl(run.evaluation)),
        "step_seconds": median(record["step_seconds"] for record in log.metrics),
        "overfitting": {
            one.source: {"verdict": one.verdict.value, "gap": one.gaps[-1], "lowest_at": one.steps[one.lowest]}
            for one in find_overfitting(log)
        },
    }


def num_trained(config: RunConfig, run: RunDirectory) -> int:
    if config.lora is None:
        return sum(row.size for row in parameter_table(config.model).trained().values())
    return sum(row["count"] for row in json.loads(run.adapters.read_text("utf-8"))["trained"])


def curves(evaluations: list[dict[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """By source: bits per byte at each step, from those of the base at step 0."""
    found: dict[str, dict[str, list[float]]] = {}
    for record in evaluations:
        first = {"step": [0], "bits_per_byte": [record["bits_per_byte_at_start"]]}
        curve = found.setdefault(record["source"], first)
        curve["step"].append(record["step"])
        curve["bits_per_byte"].append(record["bits_per_byte"])
    return found


@torch.no_grad()
def load_of_experts(source: Path, conversations: list[Conversation]) -> dict[str, Any]:
    """How evenly the tokens of whole conversations choose the experts of each layer."""
    model, tokenizer = load_pretrained(source, dtype=torch.float32), load_tokenizer(source)
    counts_LE = torch.zeros((), dtype=torch.int64)
    for each in conversations:
        ids = tokenizer.apply_chat_template(each.messages, each.tools)[: model.config.max_position_embeddings]
        counts_LE = counts_LE + model(torch.tensor([ids]), with_mtp=False).router.counts_LE
    metrics = balance_metrics(counts_LE, by_layer=True)
    return {
        "max_over_mean": [1 + violation for violation in metrics["layer_max_violation"]],
        "entropy": metrics["layer_load_entropy"],
        "never_chosen": metrics["dead_experts"],
    }


def main() -> None:
    options = parse_options(__doc__, "lora_instructions", STEPS)
    started = time.monotonic()
    with prepared(options) as directory:
        base = directory / "hf"
        if not base.exists():
            export_run(train_base(directory, options.base_steps), base, dtype="bf16")
        conversations = held_out_prompts(directory)
        ways = {}
        for way in WAYS:
            ways[way] = go_on(directory, way, options.steps)
            run = run_config(directory, way, options.steps).output_dir
            ways[way]["load"] = load_of_experts(run, conversations)
            print(f"{way}: {json.dumps(ways[way])}", flush=True)
        content = {
            "base_steps": options.base_steps,
            "steps": options.steps,
            "tokens_per_step": 2 * SEQ_LEN,
            "conversations": len(conversations),
            "load_before": load_of_experts(base, conversations),
            "ways": ways,
            "minutes": (time.monotonic() - started) / 60,
        }
    print(f"{write_result('lora_instructions', content, code=CODE, out=options.out)}: written")


if __name__ == "__main__":
    main()
