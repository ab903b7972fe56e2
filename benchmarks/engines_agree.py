"""Whether engines give the same greedy text for exported models: ours, transformers, vLLM, llama.cpp, all in fp32.

    python benchmarks/engines_agree.py --exports demo=runs/demo/export sft=runs/sft/export --vllm PYTHON --llama PYTHON

Each continues the same 100 prompts of 32 tokens (lines of Python's documentation) by 64 tokens, whatever they are. The
GGUF file is written from the export. Counted are prompts whose tokens all agree with ours, and tokens before the first
that differs. For our tokens, log-probabilities are compared with those of transformers' forward pass. Where a model has
MTP layers, the share of drafts that stand is that of ours and of vLLM.
"""

import argparse
import json
import random
import sys
import tempfile
from itertools import takewhile
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from harness import Program, arguments
from record import ROOT, write_result

from glmforge.config.load import load_model_config
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.deploy.export import open_source
from glmforge.deploy.gguf import export_gguf
from glmforge.generate.config import EngineConfig
from glmforge.generate.engine import Engine
from glmforge.generate.params import SamplingParams

PROGRAMS = ROOT / "benchmarks" / "programs"
NUM_PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 100, 32, 64
CODE = (
    "src/glmforge/generate",
    "src/glmforge/deploy/gguf.py",
    "src/glmforge/checkpoint/convert",
    "benchmarks/programs",
)
Tokens = list[list[int]]


def main() -> None:
    args = parse_arguments()
    found = {}
    for export in args.exports:
        name, _, directory = export.partition("=")
        found[name] = compare(Path(directory), args)
        print(name, json.dumps(found[name], indent=1), flush=True)
    write_result("engines_agree", {"exports": found}, code=CODE, libraries=("transformers",), out=args.out)


def parse_arguments() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--exports", nargs="+", required=True, metavar="NAME=DIRECTORY")
    parser.add_argument("--vllm", help="Python of an environment with vLLM for processors")
    parser.add_argument("--llama", help="Python of an environment with llama-cpp-python")
    return parser.parse_args()


def compare(export: Path, args: argparse.Namespace) -> dict[str, Any]:
    prompts = make_prompts(Tokenizer.load(export))
    ours, logprobs, acceptance = answered(export, prompts)
    found: dict[str, Any] = {"logprob_difference": logprob_difference(export, prompts, ours, logprobs)}
    found["transformers"] = agreement(ours, ask("run_transformers.py", sys.executable, export, prompts, "eager"))
    if args.vllm is not None:
        found["vllm"] = agreement(ours, ask("run_vllm.py", args.vllm, export, prompts, "eager"))
    if args.llama is not None:
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "model.gguf"
            export_gguf(open_source(export), file, type_name="f32")
            found["llama.cpp"] = agreement(ours, ask("run_llama_cpp.py", args.llama, file, prompts))
    if acceptance is not None:
        found["acceptance"] = {"ours": acceptance}
        if args.vllm is not None:
            program = Program("vllm", [args.vllm, str(PROGRAMS / "vllm_acceptance.py"), str(export)], 1)
            found["acceptance"]["vllm"] = program.ask({"prompts": prompts, "new_tokens": NEW_TOKENS})["acceptance"]
            program.close()
    return found


def make_prompts(tokenizer: Tokenizer) -> Tokens:
    text = "\n".join(topics[name] for name in sorted(topics))
    ids, draw = tokenizer.encode(text), random.Random(0)
    starts = [draw.randrange(len(ids) - PROMPT_TOKENS) for _ in range(NUM_PROMPTS)]
    return [ids[start : start + PROMPT_TOKENS] for start in starts]


def answered(export: Path, prompts: Tokens) -> tuple[Tokens, list[list[float]], float | None]:
    """Our tokens, their log-probabilities, and the share of MTP's drafts that stand."""
    params = SamplingParams(
        max_new_tokens=NEW_TOKENS,
        min_new_tokens=NEW_TOKENS,
        logprobs=0,
        stop_ids=[0],
        vocab_size=load_model_config(export).vocab_size,
    )
    has_mtp = load_model_config(export).num_nextn_predict_layers > 0
    engine = Engine.load(
        export, EngineConfig(drafter="mtp" if has_mtp else None, num_drafts=1, max_draft_tokens=64), dtype=torch.float32
    )
    samples = [sample for (sample,) in engine.generate(prompts, params)]
    logprobs = [[one.logprob for one in sample.logprobs] for sample in samples]
    return [sample.tokens for sample in samples], logprobs, engine.metrics.acceptance if has_mtp else None


@torch.no_grad()
def logprob_difference(export: Path, prompts: Tokens, answers: Tokens, logprobs: list[list[float]]) -> float:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(export, dtype=torch.float32, trust_remote_code=False).eval()
    largest = 0.0
    for prompt, answer, ours in zip(prompts, answers, logprobs, strict=True):
        logits_SV = model(torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1].double()
        theirs = logits_SV.log_softmax(-1).gather(1, torch.tensor(answer)[:, None]).squeeze(1)
        largest = max(largest, (theirs - torch.tensor(ours, dtype=torch.float64)).abs().max().item())
    return largest


def ask(script: str, interpreter: str, model: Path, prompts: Tokens, variant: str = "") -> Tokens:
    settings = {
        "model": str(model.resolve()),
        "dtype": "fp32",
        "variant": variant,
        "threads": 1,
        "num_sequences": NUM_PROMPTS,
        "num_tokens": PROMPT_TOKENS + NEW_TOKENS,
        "step_tokens": 512,
    }
    program = Program(script, [interpreter, str(PROGRAMS / script), json.dumps(settings)], 1)
    program.read()
    tokens: Tokens = program.ask({"prompts": prompts, "new_tokens": NEW_TOKENS})["tokens"]
    program.close()
    return tokens


def agreement(ours: Tokens, theirs: Tokens) -> dict[str, Any]:
    pairs = [zip(*both, strict=True) for both in zip(ours, theirs, strict=True)]
    same = [len(list(takewhile(lambda pair: pair[0] == pair[1], pair))) for pair in pairs]
    return {"equal_prompts": sum(length == NEW_TOKENS for length in same), "equal_tokens": sum(same), "of": 6400}


if __name__ == "__main__":
    main()
