"""An adapter in glmforge, transformers, PEFT and vLLM, in fp32: do they write the same text?

    python benchmarks/lora_instructions.py --directory runs/lora       # leaves a base model and instructions there
    python benchmarks/adapter_equality.py --directory runs/lora        # exit status 1 if a token differs

Adapters of attention, and of attention and experts, are trained for some steps on the base of `lora_instructions.py`,
in fp32, so that merged weights are not rounded. The run is written as an adapter for PEFT and as merged weights, and
held-out instructions are answered, the likeliest token after token and never ending before `--new-tokens`, by the
engine on the run itself, by transformers with PEFT on the adapter, by transformers on the merged weights and, if
GLMFORGE_VLLM_PYTHON names an interpreter that has it, by vLLM on them: for adapters of a model with experts vLLM 0.32
has kernels on GPUs only. Results are in `results/adapter_equality.json`.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from generation import VLLM_PYTHON
from generation_equality import Lists, generate_with_transformers
from lora_instructions import WAYS
from peft import PeftModel
from record import write_result
from sft import SEQ_LEN, chat_files, held_out_prompts
from transformers import AutoModelForCausalLM

import glmforge
from glmforge.checkpoint.adapter.merge import merge
from glmforge.checkpoint.adapter.to_peft import export_peft
from glmforge.checkpoint.find import find_checkpoint
from glmforge.checkpoint.pretrained import load_pretrained, load_tokenizer
from glmforge.config.load import load_model_config
from glmforge.config.schema import RunConfig
from glmforge.deploy.export import export_run
from glmforge.generate.engine import Engine
from glmforge.generate.params import SamplingParams
from glmforge.generate.runner import WholeModel

CODE = ("src/glmforge/adapt", "src/glmforge/checkpoint/adapter", "src/glmforge/generate", "benchmarks/programs")
ADAPTERS = {way: settings["lora"] for way, settings in WAYS.items() if settings}


def train_adapter(directory: Path, base: Path, name: str, steps: int) -> Path:
    """A run with adapters on the base, in fp32."""
    out = directory / f"fp32-{name.replace(' ', '-')}"
    config = {
        "name": "adapter",
        "stage": "sft",
        "output_dir": str(out),
        "init_from": str(base),
        "model": load_model_config(base).model_dump(mode="json"),
        "data": {"tokenizer": str(base), "sources": chat_files(directory, "train")},
        "phases": [{"name": "sft", "steps": steps, "seq_len": SEQ_LEN, "batch_size": 2}],
        "lora": ADAPTERS[name],
        "optim": {"lr": 5e-3, "warmup_steps": 0},
        "precision": {"compute": "fp32"},
        "observe": {"tensorboard": False, "progress": False},
    }
    glmforge.train(RunConfig.model_validate(config))
    return out


def answers(run: Path, base: Path, prompts: Lists, new_tokens: int, vllm: str | None) -> Iterator[tuple[str, Lists]]:
    """Each program's tokens; the engine's own come first."""
    adapter, merged = run / "adapter", run / "merged"
    for made, write in ((adapter, export_peft), (merged, merge)):
        if not made.exists():
            write(find_checkpoint(run), made)
    for name, source in (("glmforge", run), ("base alone", base)):
        engine = Engine(WholeModel(load_pretrained(source)))  # without a tokenizer nothing ends an answer
        params = SamplingParams(max_new_tokens=new_tokens)
        yield name, [sample.tokens for (sample,) in engine.generate(prompts, params)]
    theirs = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    for name, model in (
        ("transformers, merged", AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32)),
        ("transformers + peft", PeftModel.from_pretrained(theirs, adapter)),
    ):
        yield name, with_transformers(model.eval(), prompts, new_tokens)
    if vllm is not None:
        yield "vllm, merged", with_vllm(vllm, merged, prompts, new_tokens)


@torch.no_grad()
def with_transformers(model: Any, prompts: Lists, new_tokens: int) -> Lists:
    model.config.eos_token_id = model.generation_config.eos_token_id = None
    return [generate_with_transformers(model, torch.tensor([prompt]), new_tokens)[0] for prompt in prompts]


def with_vllm(interpreter: str, model: Path, prompts: Lists, new_tokens: int) -> Lists:
    settings = {
        "model": str(model),
        "dtype": "fp32",
        "variant": "eager",
        "threads": 1,
        "num_sequences": len(prompts),
        "num_tokens": max(map(len, prompts)) + new_tokens,
        "step_tokens": 512,
    }
    script = Path(__file__).parent / "programs" / "run_vllm.py"
    done = subprocess.run(
        [interpreter, str(script), json.dumps(settings)],
        input=json.dumps({"prompts": prompts, "new_tokens": new_tokens}),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: Lists = json.loads(done.stdout.splitlines()[-1])["tokens"]
    return found


def compare(directory: Path, base: Path, prompts: Lists, args: argparse.Namespace) -> dict[str, Any]:
    """By adapter and program, how many tokens differ from the engine's."""
    result: dict[str, Any] = {}
    for name in ADAPTERS:
        run = train_adapter(directory, base, name, args.steps)
        found = answers(run, base, prompts, args.new_tokens, args.vllm_python)
        _, ours = next(found)
        result[name] = {}
        for program, theirs in found:
            result[name][program] = int((torch.tensor(theirs) != torch.tensor(ours)).sum())
            print(f"{name}, {program}: {result[name][program]} tokens differ", flush=True)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", type=Path, required=True, help="of lora_instructions.py")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--vllm-python", default=os.environ.get(VLLM_PYTHON), help=f"an interpreter; or ${VLLM_PYTHON}")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    base = args.directory / "hf-fp32"
    if not base.exists():
        export_run(args.directory / "base", base, dtype="fp32")
    conversations = held_out_prompts(args.directory)
    tokenizer = load_tokenizer(base)
    prompts = [tokenizer.apply_chat_template(each.messages[:1], each.tools, True, False) for each in conversations]
    prompts = prompts[:: len(prompts) // args.prompts][: args.prompts]
    differing = compare(args.directory, base, prompts, args)
    content = {"steps": args.steps, "prompts": len(prompts), "tokens": len(prompts) * args.new_tokens}
    print(f"{write_result('adapter_equality', content | {'differing': differing}, code=CODE, out=args.out)}: written")
    return any(count for each in differing.values() for program, count in each.items() if program != "base alone")


if __name__ == "__main__":
    sys.exit(main())
