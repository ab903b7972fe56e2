"""Evaluation on our engine against lm-evaluation-harness's own `hf` model: the same items, and how fast.

    python benchmarks/evaluation.py --model exports/demo --data DATA                       # both parts
    python benchmarks/evaluation.py --model exports/demo --data DATA --parts speed --items 50 --quick

Equality: both are given the same requests, made by the harness's tasks. Of choices the log-likelihoods and the choice
are compared, of written answers the tokens; where the first ones differ, how far apart the two tokens are. The `hf`
model sums log-probabilities in fp32, in which a sum near 1,000 is rounded to 6e-5: so log-likelihoods are compared,
too, with the sum of transformers' own, token by token, in fp64.

Speed: the `hf` model tries batch sizes on a part of the requests and takes the fastest; then the two take turns in one
process. Times are CPU seconds of the process, whatever else the machine does, and include tokenisation. Our engine
begins each turn with an empty cache. Written answers are also asked for with one token: what the prompts take.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import glmforge.evaluate.benchmarks  # first: it says how the others are to be imported

assert glmforge.evaluate.benchmarks
import torch  # noqa: E402
from harness import SHARED_DATA, alternating, arguments, result  # noqa: E402
from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.models.huggingface import HFLM  # noqa: E402
from record import write_result  # noqa: E402

from glmforge.evaluate.benchmarks.catalog import open_benchmark  # noqa: E402
from glmforge.evaluate.benchmarks.harness import Asking, requests_of  # noqa: E402
from glmforge.evaluate.benchmarks.language_model import EngineLM  # noqa: E402
from glmforge.evaluate.benchmarks.model import Generation  # noqa: E402
from glmforge.evaluate.benchmarks.prefixes import common_length  # noqa: E402
from glmforge.evaluate.benchmarks.replies import ReplyStore  # noqa: E402
from glmforge.generate.config import EngineConfig  # noqa: E402
from glmforge.generate.engine import Engine  # noqa: E402

CODE = ("src/glmforge/evaluate/benchmarks", "src/glmforge/generate", "src/glmforge/kernels", "src/glmforge/model")
CHOICES, WRITTEN = ("mmlu", "mmlu answers"), ("gsm8k", "math", "humaneval")
"""`mmlu answers` has the choices' texts behind the question: continuations of several tokens, without examples."""
BATCH_SIZES = (1, 4, 8, 16, 32)
CONFIG = EngineConfig(cache_bytes=1 << 28)


def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    found = {}
    for name in args.parts:
        found[name] = {"equality": equality, "speed": speed}[name](args)
    if not args.quick:
        kept = {name: part for name, part in result("evaluation").items() if name in ("equality", "speed")}
        content = {"threads": args.threads, "dtype": "fp32"} | kept | found
        write_result("evaluation", content, code=CODE, libraries=("lm-eval", "transformers"), out=args.out)


def parse_arguments() -> argparse.Namespace:
    parser = arguments(__doc__, rounds=3, threads=True)
    parser.add_argument("--model", type=Path, required=True, help="an export with its tokenizer")
    parser.add_argument("--data", type=Path, default=SHARED_DATA / "eval", help="directory of the benchmarks' files")
    parser.add_argument("--parts", nargs="+", choices=["equality", "speed"], default=["equality", "speed"])
    parser.add_argument("--items", type=int, default=500, help="of each benchmark, for equality")
    parser.add_argument("--speed-items", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=64, help="longest answer, for equality")
    parser.add_argument("--speed-new-tokens", type=int, default=256, help="longest answer, for speed; gsm8k's own")
    parser.add_argument("--batch-size", type=int, default=16, help="of the hf model, for equality")
    parser.add_argument("--quick", action="store_true", help="a trial that writes no result")
    return parser.parse_args()


class Ours:
    """A fresh engine, which keeps replies in memory, for each use; the weights are read once."""

    def __init__(self, model: Path) -> None:
        engine = Engine.load(model, CONFIG, dtype=torch.float32)
        self._model, self._words = engine.runner, engine.tokenizer

    def __call__(self) -> EngineLM:
        return EngineLM(Engine(self._model, CONFIG, tokenizer=self._words), ReplyStore(None), Generation())


def hf_model(model: Path, batch_size: int) -> HFLM:
    return HFLM(pretrained=str(model), device="cpu", dtype="float32", batch_size=batch_size)


def requests(name: str, data: Path, lm: EngineLM, limit: int, new_tokens: int) -> list[Instance]:
    """Of `limit` items, taken evenly; answers of at most so many tokens."""
    if name == "mmlu answers":
        return [
            Instance(
                "loglikelihood", doc, (f"Question: {doc['question']}\nAnswer:", f" {text}"), index, (name, item, 1)
            )
            for item, doc in enumerate(
                one.doc for one in requests_of(open_benchmark("mmlu", data), Asking(limit=limit), lm)
            )
            for index, text in enumerate(doc["choices"])
        ]
    asked = requests_of(open_benchmark(name, data), Asking(limit=limit), lm)
    found = [(item, request) for item, one in enumerate(asked) for request in one.requests]
    for item, request in found:
        request.metadata = (name, item, 1)
        request.doc_id = item
        if name in WRITTEN:
            request.arguments = (request.args[0], {**request.args[1], "max_gen_toks": new_tokens})
    return [request for _, request in found]


def equality(args: argparse.Namespace) -> dict[str, Any]:
    ours, theirs = Ours(args.model), hf_model(args.model, args.batch_size)
    found: dict[str, Any] = {}
    for name in (*CHOICES, *WRITTEN):
        lm, began = ours(), time.perf_counter()
        asked = requests(name, args.data, lm, args.items, args.new_tokens)
        found[name] = (compare_choices if name in CHOICES else compare_answers)(lm, theirs, asked)
        print(name, found[name], f"{time.perf_counter() - began:.0f} s", flush=True)
    return found


def compare_choices(ours: EngineLM, theirs: HFLM, asked: Sequence[Instance]) -> dict[str, Any]:
    """By item: the log-likelihoods of all its choices, and which one is the likeliest."""
    pairs = list(
        zip(ours.loglikelihood(list(asked)), theirs.loglikelihood(list(asked), disable_tqdm=True), strict=True)
    )
    items: dict[int, list[tuple[float, float]]] = {}
    for request, ((mine, _), (other, _)) in zip(asked, pairs, strict=True):
        items.setdefault(request.doc_id, []).append((mine, other))
    best = [[max(range(len(some)), key=lambda i: some[i][side]) for side in (0, 1)] for some in items.values()]
    exact = sums_of_tokens(theirs, [pair for request in asked for pair in ours._pairs(request)])
    return {
        "items": len(items),
        "choices": len(asked),
        "largest_difference": max(abs(mine[0] - other[0]) for mine, other in pairs),
        "largest_difference_to_fp64_sum": max(abs(mine[0] - one) for (mine, _), one in zip(pairs, exact, strict=True)),
        "hf_to_fp64_sum": max(abs(other[0] - one) for (_, other), one in zip(pairs, exact, strict=True)),
        "largest_sum": max(map(abs, exact)),
        "other_choice": sum(mine != other for mine, other in best),
        "other_greedy": sum(mine[1] != other[1] for mine, other in pairs),
        "longest_continuation": max(reply.num_tokens for reply in ours.replies.known.values()),
        "truncated": sum(reply.is_truncated for reply in ours.replies.known.values()),
    }


@torch.inference_mode()
def sums_of_tokens(theirs: HFLM, pairs: Sequence[tuple[list[int], list[int]]]) -> list[float]:
    """The log-likelihood of each continuation by the transformers model within `theirs`: its fp32 log-probabilities of
    the tokens, without padding, summed in fp64."""
    found = []
    for context, continuation in pairs:
        ids = torch.tensor([*context, *continuation][-(theirs.max_length + 1) :])
        logprobs_TV = theirs.model(ids[None, :-1]).logits[0].log_softmax(-1)
        logprobs_T = logprobs_TV.gather(1, ids[1:, None])[-len(continuation) :, 0]
        found.append(logprobs_T.double().sum().item())
    return found


def compare_answers(ours: EngineLM, theirs: HFLM, asked: Sequence[Instance]) -> dict[str, Any]:
    """By item: the tokens of the answers as the task sees them. Where they part, each is scored behind what they have
    in common: two tokens that are equally likely up to rounding are no difference of the models."""
    pairs = zip(ours.generate_until(list(asked)), theirs.generate_until(list(asked), disable_tqdm=True), strict=True)
    num_tokens, num_other, gaps = 0, 0, []
    for request, texts in zip(asked, pairs, strict=True):
        mine, other = map(ours.tok_encode, texts)
        same = common_length(mine, other)
        num_tokens, num_other = num_tokens + len(mine), num_other + max(len(mine), len(other)) - same
        if mine != other:
            gaps.append(gap(ours, [*ours.tok_encode(request.args[0]), *mine[:same]], mine[same:], other[same:]))
    return {
        "items": len(asked),
        "tokens": num_tokens,
        "other_answers": len(gaps),
        "other_tokens": num_other,
        "largest_gap": max((one for one in gaps if one is not None), default=0.0),
        "ends_elsewhere": sum(one is None for one in gaps),
    }


def gap(lm: EngineLM, before: list[int], mine: list[int], other: list[int]) -> float | None:
    """How far apart two next tokens are in log-probability; None where one answer ends there."""
    if not mine or not other:
        return None
    first, second = lm._loglikelihood_tokens([(("", ""), before, [tokens[0]]) for tokens in (mine, other)])
    return abs(first[0] - second[0])


def speed(args: argparse.Namespace) -> dict[str, Any]:
    ours, theirs = Ours(args.model), hf_model(args.model, 1)
    return {name: compare_speed(name, ours, theirs, args) for name in (*CHOICES, *WRITTEN)}


def compare_speed(name: str, ours: Ours, theirs: HFLM, args: argparse.Namespace) -> dict[str, Any]:
    call, lm = "generate_until" if name in WRITTEN else "loglikelihood", ours()
    asked = speed_requests(name, args, lm)
    trial = asked[: max(BATCH_SIZES)] if name in WRITTEN else asked[: max(64, len(asked) // 4)]
    sizes = {size: theirs_in(theirs, size, call, trial) for size in BATCH_SIZES}
    best = min(sizes, key=sizes.__getitem__)
    turns: dict[str, list[float]] = {"glmforge": [], "hf": []}
    for who in alternating(list(turns), args.rounds):
        if who == "hf":
            turns[who].append(theirs_in(theirs, best, call, asked))
        else:
            lm = ours()
            turns[who].append(cpu_seconds_of(lm, call, asked))
    ratios = sorted(b / a for a, b in zip(turns["glmforge"], turns["hf"], strict=True))
    found = {
        "requests": len(asked),
        "hf_batch_sizes_cpu_s": {str(size): round(seconds, 2) for size, seconds in sizes.items()},
        "hf_batch_size": best,
        "glmforge_cpu_s": [round(one, 2) for one in turns["glmforge"]],
        "hf_cpu_s": [round(one, 2) for one in turns["hf"]],
        "times_faster": {"median": round(statistics.median(ratios), 2), "min": round(ratios[0], 2)},
        "tokens_computed": lm.engine.metrics.num_computed,
        "prompt_tokens": sum(len(lm.tok_encode(request.args[0])) for request in asked),
    }
    if name in WRITTEN:
        found |= {"new_tokens": sum(reply.num_tokens for reply in lm.replies.known.values())}
        first = requests(name, args.data, lm, args.speed_items, 1)
        found |= {"glmforge_prompts_cpu_s": round(cpu_seconds_of(ours(), call, first), 2)}
        found |= {"hf_prompts_cpu_s": round(theirs_in(theirs, best, call, first), 2)}
    print(name, found, flush=True)
    return found


def speed_requests(name: str, args: argparse.Namespace, lm: EngineLM) -> list[Instance]:
    """Of `mmlu` whole subjects, as in a whole evaluation: items of a subject share its examples."""
    if name != "mmlu":
        return requests(name, args.data, lm, args.speed_items, args.speed_new_tokens)
    benchmark = open_benchmark(name, args.data)
    asked = [one for one in requests_of(benchmark, Asking(), lm) if one.task is benchmark.tasks[0]]
    return [request for one in asked[: args.speed_items] for request in one.requests]


def theirs_in(lm: HFLM, size: int, call: str, asked: Sequence[Instance]) -> float:
    """CPU seconds with this batch size."""
    lm.batch_size_per_gpu = size
    return cpu_seconds_of(lm, call, asked)


def cpu_seconds_of(lm: EngineLM | HFLM, call: str, asked: Sequence[Instance]) -> float:
    began = time.process_time()
    getattr(lm, call)(list(asked), disable_tqdm=True)
    return time.process_time() - began


if __name__ == "__main__":
    main()
