"""Run benchmarks: make the requests, have them answered, score every item.

The tasks of lm-evaluation-harness make the prompts, filter the answers and measure them. Its `evaluate` is not used: it
scores only the first of several samples, drops the replies themselves, and does not know which ones were cut.
"""

import hashlib
import json
import logging
import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import lm_eval.api.task
import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.api.samplers import ContextSampler
from lm_eval.api.task import ConfigurableTask
from tqdm import tqdm

from glmforge.errors import GlmforgeError
from glmforge.evaluate.benchmarks.catalog import Benchmark
from glmforge.evaluate.benchmarks.model import Model, stop_strings
from glmforge.evaluate.benchmarks.replies import Reply
from glmforge.evaluate.result import Choice, Interval, Item, Score, Written
from glmforge.evaluate.statistics import estimate, majority, pass_at_k
from glmforge.verify.reply import visible_answer

lm_eval.api.task.tqdm = partial(tqdm, disable=True)  # a bar for each task; its switch is read once, often too early

FEWSHOT_SEED = 1234
"""The harness's own, so that few-shot examples that are drawn are those of published scores."""
EQUALLY_LIKELY = 1e-6
"""Choices whose log-likelihoods differ by less are equally likely: the server does not score the prompt at all."""


@dataclass(frozen=True)
class Asking:
    """How the items are asked. `chat` applies the chat template, with few-shot examples as turns after the `system`
    message; `num_fewshot` replaces the task's own number; `limit` takes this many items, evenly."""

    chat: bool = False
    system: str = ""
    num_fewshot: int | None = None
    limit: int | None = None


@dataclass(frozen=True)
class Asked:
    """The requests of one item; its number is its place in the list of all tasks' items."""

    task: ConfigurableTask
    number: int
    doc: Mapping[str, Any]
    requests: list[Instance]


@dataclass(frozen=True)
class Answered:
    """A benchmark's requests and the model's replies: of each item a reply to each request, or the samples."""

    benchmark: Benchmark
    asked: list[Asked]
    replies: list[list[Reply]]


def requests_of(benchmark: Benchmark, asking: Asking, model: Model) -> list[Asked]:
    """The items of a benchmark, in the order of its tasks, with their requests."""
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    total = sum(len(task.eval_docs) for task in benchmark.tasks)
    limit = total if asking.limit is None else min(asking.limit, total)
    chosen = [index * total // limit for index in range(limit)]
    asked: list[Asked] = []
    start = 0
    for task in benchmark.tasks:
        stop = start + len(task.eval_docs)
        if numbers := [number - start for number in chosen if start <= number < stop]:
            some = _requests_of(task, numbers, asking, model)
            asked += [Asked(task, start + n, one[0].doc, one) for n, one in zip(numbers, some, strict=True)]
        start = stop
    return asked


def _requests_of(task: ConfigurableTask, numbers: list[int], asking: Asking, model: Model) -> list[list[Instance]]:
    """The requests of each of these documents."""
    own, ours = task.config.num_fewshot or 0, asking.num_fewshot
    task.set_config("num_fewshot", own if ours is None or task.config.num_fewshot == 0 else ours)
    task.set_fewshot_seed(FEWSHOT_SEED)
    # Each document draws its examples in turn: a limit must not change those of the documents that are left.
    draws = type(getattr(task, "sampler", None)) is ContextSampler and task.config.num_fewshot > 0
    task.build_all_requests(
        limit=numbers[-1] + 1 if draws else None,
        samples=None if draws else numbers,
        system_instruction=asking.system or None,
        apply_chat_template=asking.chat,
        fewshot_as_multiturn=asking.chat,
        chat_template=model.apply_chat_template if asking.chat else None,
        tokenizer_name=model.tokenizer_name,
    )
    by_doc: dict[int, list[Instance]] = defaultdict(list)
    for request in task.instances:
        by_doc[int(request.doc_id or 0)].append(request)
    places = numbers if draws else range(len(numbers))
    return [sorted(by_doc[place], key=lambda request: request.idx) for place in places]


def run_benchmark(
    benchmark: Benchmark, asking: Asking, model: Model, on_scored: Callable[[int], object] = lambda number: None
) -> tuple[Score, list[Item]]:
    """Ask and score a benchmark, as `answer` and `score` do."""
    return score(answer(benchmark, requests_of(benchmark, asking, model), model), on_scored)


def answer(benchmark: Benchmark, asked: list[Asked], model: Model) -> Answered:
    """Have the model answer; ranks that share a model call this together."""
    if asked and asked[0].requests[0].request_type == "generate_until":
        return Answered(benchmark, asked, model.write([one.requests[0] for one in asked]))
    replies = iter(model.score([request for one in asked for request in one.requests]))
    return Answered(benchmark, asked, [[next(replies) for _ in one.requests] for one in asked])


def score(answered: Answered, on_scored: Callable[[int], object] = lambda number: None) -> tuple[Score, list[Item]]:
    """Score every item.

    Args:
        on_scored: called with the number of items scored so far.

    Raises:
        GlmforgeError: a task cannot score an answer.
    """
    benchmark, items = answered.benchmark, list[Item]()
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # judges wait for processes of their own
        for item in pool.map(partial(_item, benchmark), answered.asked, answered.replies):
            items.append(item)
            on_scored(len(items))
    if not items or items[0].written or items[0].choices:
        return score_of(benchmark, items), items
    row = score_of(replace(benchmark, metric="negative bits per byte"), items)
    sizes = [item.metrics["num_bytes"] for item in items]
    bits = sum(-item.score * size for item, size in zip(items, sizes, strict=True)) / max(1.0, sum(sizes))
    return row.model_copy(update={"extra": {"bits_per_byte": bits}}), items


def _item(benchmark: Benchmark, asked: Asked, replies: Sequence[Reply]) -> Item:
    read = {"generate_until": _of_answers, "loglikelihood": _of_choices, "loglikelihood_rolling": _of_text}
    doc, first = asked.doc, asked.requests[0]
    common: dict[str, Any] = {
        "benchmark": benchmark.name,
        "number": asked.number,
        "digest": _digest([[str(part) for part in request.args[:1]] for request in asked.requests]),
        "subject": str(doc.get(benchmark.subject, "")),
        "level": str(doc.get(benchmark.level, "")),
        "cluster": str(doc.get(benchmark.cluster, "")),
        "prompt": str(first.args[0]),
        "is_truncated": any(reply.is_truncated for reply in replies),
    }
    return Item(**common | read[first.request_type](benchmark, asked, replies))


def _of_choices(benchmark: Benchmark, asked: Asked, replies: Sequence[Reply]) -> dict[str, Any]:
    metrics, _ = _measured(benchmark, asked, [(reply.logprob, reply.is_greedy) for reply in replies])
    logprobs = [reply.logprob or 0.0 for reply in replies]
    return {
        "target": str(asked.task.doc_to_target(asked.doc)),
        "score": metrics[benchmark.metric],
        "metrics": metrics,
        "choices": tuple(
            Choice(text=str(request.args[1]), logprob=logprob, num_tokens=reply.num_tokens)
            for request, logprob, reply in zip(asked.requests, logprobs, replies, strict=True)
        ),
        "predicted": int(np.argmax(logprobs)),
    }


def _of_answers(benchmark: Benchmark, asked: Asked, replies: Sequence[Reply]) -> dict[str, Any]:
    stops, written, measured = stop_strings(asked.requests[0].args[1]), [], []
    for reply in replies:
        answer = visible_answer(reply.text, stops)
        metrics, extracted = _measured(benchmark, asked, [answer])
        measured.append(metrics)
        judged = {"answer": answer, "extracted": extracted, "score": metrics[benchmark.metric], "is_cut": reply.is_cut}
        written.append(Written.model_validate(asdict(reply) | judged))
    return {
        "target": str(asked.task.doc_to_target(asked.doc)),
        "score": _mean(one.score for one in written),
        "metrics": {name: _mean(one[name] for one in measured) for name in measured[0]},
        "written": tuple(written),
    }


def _of_text(benchmark: Benchmark, asked: Asked, replies: Sequence[Reply]) -> dict[str, Any]:
    """Of a perplexity task: bits per byte of a whole text; the fewer, the better, so the score is their negative."""
    num_bytes = len(str(asked.requests[0].args[0]).encode())
    bits = -(replies[0].logprob or 0.0) / math.log(2) / max(1, num_bytes)
    return {"target": "", "score": -bits, "metrics": {"bits_per_byte": bits, "num_bytes": num_bytes}}


def _measured(benchmark: Benchmark, asked: Asked, responses: Sequence[Any]) -> tuple[dict[str, float], str | None]:
    """What the task measures of these responses after the benchmark's filter, and what it took for the answer."""
    filtered = _filtered(benchmark, asked, responses)
    try:
        found = asked.task.process_results(asked.doc, filtered)
    except GlmforgeError:
        raise
    except Exception as error:
        message = " ".join(str(error).split())
        raise GlmforgeError(
            f"benchmark {benchmark.name}, item {asked.number}: the task cannot score the answer "
            f"({type(error).__name__}: {message:.200})"
        ) from error
    metrics = {name: float(value) for name, value in found.items() if isinstance(value, int | float | np.number)}
    if benchmark.metric not in metrics:
        raise GlmforgeError(
            f"benchmark {benchmark.name}: the task does not measure {benchmark.metric} of each item; it measures "
            f"{', '.join(metrics) or 'nothing'}"
        )
    if "extracted" in found:
        return metrics, found["extracted"]
    first = filtered[0][0] if isinstance(filtered[0], list) and filtered[0] else filtered[0]
    return metrics, first if isinstance(first, str) and first not in ("[invalid]", "") else None


def _filtered(benchmark: Benchmark, asked: Asked, responses: Sequence[Any]) -> list[Any]:
    chosen = next((one for one in getattr(asked.task, "_filters", []) if one.name == benchmark.filter), None)
    if chosen is None:
        return list(responses)
    for request, response in zip(asked.requests, responses, strict=True):
        request.resps = [response]
    chosen.apply(asked.requests)
    return [request.filtered_resps[chosen.name] for request in asked.requests]


def score_of(benchmark: Benchmark, items: Sequence[Item]) -> Score:
    """The row of a benchmark from its items."""
    if not items:
        raise GlmforgeError(f"benchmark {benchmark.name}: no items")
    written = [one for item in items for one in item.written]
    finished = [one.score for one in written if not one.is_cut]
    refused = _refused(items)
    is_scored = benchmark.is_scored and not refused
    whole = estimate(
        [item.score for item in items], [item.cluster or f"item {place}" for place, item in enumerate(items)]
    )
    interval = None if math.isnan(whole.low) else Interval(low=whole.low, high=whole.high)
    return Score(
        benchmark=benchmark.name,
        metric=benchmark.metric,
        num_items=len(items),
        num_samples=max(len(item.written) for item in items) or 1,
        score=whole.mean if is_scored else None,
        interval=interval if is_scored else None,
        finished_score=_mean(finished) if finished and is_scored else None,
        num_finished=len(finished) if written else None,
        cut_share=sum(one.is_cut for one in written) / len(written) if written else 0.0,
        num_truncated=sum(item.is_truncated for item in items),
        chance=benchmark.chance,
        fingerprint=_digest([benchmark.data, benchmark.metric, benchmark.filter, [item.digest for item in items]]),
        extra=_extra(benchmark, items) if benchmark.is_scored else {benchmark.metric: whole.mean},
        refused=refused,
        num_tokens=sum(one.num_tokens for one in written) + sum(c.num_tokens for item in items for c in item.choices),
    )


def _refused(items: Sequence[Item]) -> str:
    """Why there is no score; "" if there is one."""
    several = [[choice.logprob for choice in item.choices] for item in items if len(item.choices) > 1]
    if several and all(max(logprobs) - min(logprobs) < EQUALLY_LIKELY for logprobs in several):
        return (
            "all choices of every item are equally likely: the model or server does not score the prompt; use a server "
            "with echo and logprobs, or the weights"
        )
    return ""


def _extra(benchmark: Benchmark, items: Sequence[Item]) -> dict[str, float]:
    """Other measures; pass@k and the majority's score, where there are several samples and scores are 0 or 1."""
    names = [name for name in items[0].metrics if all(name in item.metrics for item in items)]
    extra = {name: _mean(item.metrics[name] for item in items) for name in names if name != benchmark.metric}
    number = min(len(item.written) for item in items)
    if number < 2 or any(one.score not in (0.0, 1.0) for item in items for one in item.written):
        return extra
    right = [(len(item.written), sum(one.score == 1.0 for one in item.written)) for item in items]
    for k in sorted({number, *(2**i for i in range(1, number.bit_length()))}):
        extra[f"pass@{k}"] = _mean(pass_at_k(samples, num_right, k) for samples, num_right in right)
    if any(one.extracted is not None for item in items for one in item.written):
        extra[f"majority@{number}"] = _mean(_majority_score(item) for item in items)
    return extra


def _majority_score(item: Item) -> float:
    chosen = majority([one.extracted for one in item.written], lambda a, b: a.strip() == b.strip())
    return 0.0 if chosen is None else item.written[chosen].score


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content).encode(errors="replace")).hexdigest()[:32]
