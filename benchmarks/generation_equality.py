"""The engine's greedy answers and log-probabilities against transformers and one full forward pass, in fp32.

    python benchmarks/generation_equality.py            # 200 prompts, 128 tokens each; exit status 1 if they differ
    python benchmarks/generation_equality.py --prompts 20 --new-tokens 32

The model is that of generation_model.py, the prompts come from its held-out text and have ten different lengths. Tokens
are compared with those of transformers' `generate`, which gets prompts of one length together, so that it has no
padding. The log-probabilities that the engine gives for the tokens it chose are compared with those of the whole text
in one forward pass, of our own model and of transformers'.
"""

import argparse
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from generation_model import FOLDER
from record import write_result
from torch import Tensor
from transformers import AutoModelForCausalLM

from glmforge.checkpoint.pretrained import load_pretrained
from glmforge.data.tokens.shards import TokenShard
from glmforge.generate.engine import Engine
from glmforge.generate.params import SamplingParams
from glmforge.generate.runner import WholeModel

CODE = ("src/glmforge/generate", "src/glmforge/kernels", "src/glmforge/model", "benchmarks/generation_model.py")
LENGTHS = range(16, 256, 24)
TOLERANCE = 1e-5
"""Of a log-probability: rounding of fp32 sums in another order stays below it."""

Lists = list[list[int]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=FOLDER, help="what generation_model.py made")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    result = compare(args.model, args.prompts, args.new_tokens)
    print(result)
    write_result("generation_equality", result, code=CODE, libraries=("transformers",), out=args.out)
    largest = max(result["logprob_difference"].values())
    return result["differing_tokens"] > 0 or largest > TOLERANCE


@torch.no_grad()
def compare(folder: Path, num_prompts: int, new_tokens: int) -> dict[str, Any]:
    theirs = AutoModelForCausalLM.from_pretrained(folder / "hf-fp32", dtype=torch.float32).eval()
    theirs.config.eos_token_id = theirs.generation_config.eos_token_id = None
    model = load_pretrained(folder / "hf-fp32")
    prompts = make_prompts(folder, num_prompts)
    params = SamplingParams(max_new_tokens=new_tokens, logprobs=0)
    samples = [one for (one,) in Engine(WholeModel(model)).generate(prompts, params)]
    answers = [sample.tokens for sample in samples]
    expected = in_groups(prompts, lambda ids: generate_with_transformers(theirs, ids, new_tokens))
    texts = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
    given = [torch.tensor([token.logprob for token in sample.logprobs]) for sample in samples]
    differing_NS = torch.tensor(answers) != torch.tensor(expected)
    passes = {"full_forward": model.logits, "transformers": lambda ids: theirs(ids).logits}
    return {
        "prompts": num_prompts,
        "tokens": differing_NS.numel(),
        "differing_tokens": int(differing_NS.sum()),
        "differing_answers": int(differing_NS.any(dim=1).sum()),
        "logprob_difference": {
            name: (torch.stack(given) - torch.stack(logprobs(texts, logits_of, new_tokens))).abs().max().item()
            for name, logits_of in passes.items()
        },
    }


def make_prompts(folder: Path, number: int) -> Lists:
    """From anywhere in the held-out text, one length after the other."""
    shard, rng = TokenShard(folder / "data" / "held_out"), random.Random(0)
    lengths = [LENGTHS[i * len(LENGTHS) // number] for i in range(number)]
    starts = [rng.randrange(shard.num_tokens - length) for length in lengths]
    return [shard.tokens(start, start + length).tolist() for start, length in zip(starts, lengths, strict=True)]


def in_groups(rows: Lists, function: Callable[[Tensor], list[Any]]) -> list[Any]:
    """What `function` gives for rows of one length at a time; such rows stand together."""
    lengths = dict.fromkeys(map(len, rows))
    return [found for length in lengths for found in function(torch.tensor([r for r in rows if len(r) == length]))]


def generate_with_transformers(model: Any, ids: Tensor, new_tokens: int) -> Lists:
    mask = torch.ones_like(ids)
    output = model.generate(ids, attention_mask=mask, max_new_tokens=new_tokens, do_sample=False, pad_token_id=0)
    found: Lists = output[:, ids.shape[1] :].tolist()
    return found


def logprobs(texts: Lists, logits_of: Callable[[Tensor], Tensor], number: int) -> list[Tensor]:
    """Of the last `number` tokens of each text, from the logits in float64: a log_softmax over them in fp32 would round
    more than the pass does."""

    def of_group(ids_BS: Tensor) -> list[Tensor]:
        logprobs_BNV = logits_of(ids_BS)[:, -number - 1 : -1].double().log_softmax(dim=-1)
        return list(logprobs_BNV.gather(2, ids_BS[:, -number:, None]).squeeze(2))

    return in_groups(texts, of_group)


if __name__ == "__main__":
    sys.exit(main())
