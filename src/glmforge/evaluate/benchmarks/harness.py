"""Run benchmarks: make the requests, have them answered, score every item.

The harness's `evaluate` is not used: it scores the first of several samples only, drops what a reply looked like, and
knows no replies that were cut. Its tasks are: they make the prompts, filter the answers and measure them.
"""

import hashlib
import json
import logging
import math
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.api.samplers import ContextSampler
from lm_eval.api.task import ConfigurableTask

from glmforge.errors import GlmforgeError
from glmforge.evaluate.benchmarks.catalog import Benchmark
from glmforge.evaluate.benchmarks.replies import Reply
from glmforge.evaluate.benchmarks.visible import stop_strings, visible_answer
from glmforge.evaluate.result import Choice, Interval, Item, Score, Written
from glmforge.evaluate.statistics import Estimate, estimate, majority, pass_at_k

FEWSHOT_SEED = 1234
"""The harness's own, so that few-shot examples that are drawn are those of published scores."""
EQUALLY_LIKELY = 1e-6
"""Choices whose log-likelihoods differ by less are equally likely: the server does not score the prompt at all."""


class Model(Protocol):
    """What answers requests: `language_model.EngineLM`, `endpoint_model.EndpointLM`."""

    tokenizer_name: str

    def apply_chat_template(
        self,
        chat_history: list[dict[str, str]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str: ...

    def score(self, requests: Sequence[Instance]) -> list[Reply]:
        """A reply to each request of the kind "loglikelihood"."""
        ...

    def write(self, requests: Sequence[Instance]) -> list[list[Reply]]:
        """The samples of each request of the kind "generate_until"."""
        ...

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]: ...


@dataclass(frozen=True)
class Asking:
    """How the items are asked.

    Attributes:
        chat: apply the chat template, few-shot examples as turns.
        system: the system message, "" for none.
        num_fewshot: instead of the task's own number.
        limit: only so many items of each benchmark, taken evenly; None for all.
    """

    chat: bool = False
    system: str = ""
    num_fewshot: int | None = None
    limit: int | None = None


@dataclass(frozen=True)
class Asked:
    """The requests of one item."""

    task: ConfigurableTask
    number: int
    doc: Mapping[str, Any]
    requests: list[Instance]


def requests_of(benchmark: Benchmark, asking: Asking, model: Model) -> list[Asked]:
    """The items of a benchmark, in the order of its tasks, with their requests."""
    sizes = [len(task.eval_docs) for task in benchmark.tasks]
    chosen = _chosen(sizes, asking.limit)
    asked: list[Asked] = []
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    for task, numbers in zip(benchmark.tasks, chosen, strict=True):
        if not numbers:
            continue
        own = task.config.num_fewshot
        task.set_config("num_fewshot", own if asking.num_fewshot is None or own == 0 else asking.num_fewshot)
        if task.config.num_fewshot is None:
            task.set_config("num_fewshot", 0)
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
        for place, number in enumerate(numbers):
            requests = sorted(by_doc[number if draws else place], key=lambda one: one.idx)
            asked.append(Asked(task, number, requests[0].doc, requests))
    return asked


def _chosen(sizes: Sequence[int], limit: int | None) -> list[list[int]]:
    """The numbers of the items to take of each task: all, or `limit` taken evenly from the whole list."""
    total = sum(sizes)
    places = range(total) if limit is None or limit >= total else [i * total // limit for i in range(limit)]
    chosen: list[list[int]] = []
    start = 0
    places = list(places)
    for size in sizes:
        chosen.append([place - start for place in places if start <= place < start + size])
        start += size
    return chosen


@dataclass(frozen=True)
class Answered:
    """A benchmark's requests and what the model said to them.

    Attributes:
        replies: of each item, by its requests, the samples of each.
        logprobs: of each item's whole text, of a perplexity task instead.
    """

    benchmark: Benchmark
    asked: list[Asked]
    replies: list[list[list[Reply]]]
    logprobs: list[float]


def run_benchmark(
    benchmark: Benchmark, asking: Asking, model: Model, on_scored: Callable[[int], None] | None = None
) -> tuple[Score, list[Item]]:
    """Ask and score a benchmark, as `answer` and `score` do."""
    return score(answer(benchmark, requests_of(benchmark, asking, model), model), on_scored)


def answer(benchmark: Benchmark, asked: list[Asked], model: Model) -> Answered:
    """Have the model answer; ranks that share a model call this together."""
    kinds = {request.request_type for one in asked for request in one.requests}
    if kinds == {"loglikelihood"}:
        replies = iter(model.score([request for one in asked for request in one.requests]))
        return Answered(benchmark, asked, [[[next(replies)] for _ in one.requests] for one in asked], [])
    if kinds == {"generate_until"}:
        written = model.write([one.requests[0] for one in asked])
        return Answered(benchmark, asked, [[samples] for samples in written], [])
    return Answered(benchmark, asked, [], model.loglikelihood_rolling([one.requests[0] for one in asked]))


def score(answered: Answered, on_scored: Callable[[int], None] | None = None) -> tuple[Score, list[Item]]:
    """Score every item.

    Args:
        on_scored: called with the number of items scored so far.

    Raises:
        GlmforgeError: the task cannot.
    """
    if answered.logprobs:
        return _rolling(answered)
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # judges wait for processes of their own
        pairs = zip(answered.asked, answered.replies, strict=True)
        scored: list[Item] = []
        for item in pool.map(lambda pair: _item(answered.benchmark, *pair), pairs):
            scored.append(item)
            if on_scored is not None:
                on_scored(len(scored))
    return score_of(answered.benchmark, scored), scored


def _item(benchmark: Benchmark, asked: Asked, answered: Sequence[Sequence[Reply]]) -> Item:
    doc, first = asked.doc, asked.requests[0]
    common: dict[str, Any] = {
        "benchmark": benchmark.name,
        "number": asked.number if len(benchmark.tasks) == 1 else _place(benchmark, asked),
        "digest": _digest([[str(part) for part in request.args[:1]] for request in asked.requests]),
        "subject": _field(doc, benchmark.subject),
        "level": _field(doc, benchmark.level),
        "cluster": _field(doc, benchmark.cluster),
        "prompt": str(first.args[0]),
        "target": str(asked.task.doc_to_target(doc)),
    }
    if first.request_type == "loglikelihood":
        replies = [reply for (reply,) in answered]
        metrics, _ = _measured(benchmark, asked, [(reply.logprob, reply.is_greedy) for reply in replies])
        choices = [
            Choice(text=str(request.args[1]), logprob=reply.logprob or 0.0, num_tokens=reply.num_tokens)
            for request, reply in zip(asked.requests, replies, strict=True)
        ]
        return Item(
            **common,
            score=_metric(benchmark, metrics),
            metrics=metrics,
            choices=tuple(choices),
            predicted=int(np.argmax([choice.logprob for choice in choices])),
            is_truncated=any(reply.is_truncated for reply in replies),
        )
    (samples,) = answered
    written, measured = [], []
    stops = stop_strings(first.args[1])
    for reply in samples:
        answer = visible_answer(reply.text, stops)
        metrics, extracted = _measured(benchmark, asked, [answer])
        measured.append(metrics)
        written.append(
            Written(
                text=reply.text,
                answer=answer,
                extracted=extracted,
                score=_metric(benchmark, metrics),
                is_cut=reply.is_cut,
                num_tokens=reply.num_tokens,
                num_prompt_tokens=reply.num_prompt_tokens,
                logprob=reply.logprob,
                seconds=reply.seconds,
            )
        )
    means = {name: float(np.mean([one[name] for one in measured])) for name in measured[0]}
    return Item(
        **common,
        score=float(np.mean([one.score for one in written])),
        metrics=means,
        written=tuple(written),
        is_truncated=any(reply.is_truncated for reply in samples),
    )


def _measured(benchmark: Benchmark, asked: Asked, responses: Sequence[Any]) -> tuple[dict[str, float], str | None]:
    """What the task measures of these responses behind the benchmark's filter, and what it took for the answer."""
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
    extracted = found["extracted"] if "extracted" in found else _first(filtered[0])
    numbers = (int, float, bool, np.number)
    return {name: float(value) for name, value in found.items() if isinstance(value, numbers)}, extracted


def _first(filtered: Any) -> str | None:
    """The text that a filter left, or None where it found nothing."""
    found = filtered[0] if isinstance(filtered, list) and filtered else filtered
    return found if isinstance(found, str) and found not in ("[invalid]", "") else None


def _filtered(benchmark: Benchmark, asked: Asked, responses: Sequence[Any]) -> list[Any]:
    for one in getattr(asked.task, "_filters", []):
        if one.name == benchmark.filter:
            copies = [
                Instance(
                    request.request_type, dict(asked.doc), request.arguments, request.idx, request.metadata, [response]
                )
                for request, response in zip(asked.requests, responses, strict=True)
            ]
            one.apply(copies)
            return [copy.filtered_resps[one.name] for copy in copies]
    return list(responses)


def score_of(benchmark: Benchmark, items: Sequence[Item]) -> Score:
    """The row of a benchmark from its items."""
    if not items:
        raise GlmforgeError(f"benchmark {benchmark.name}: no items")
    clusters = [item.cluster or f"item {place}" for place, item in enumerate(items)]
    written = [one for item in items for one in item.written]
    finished = [one.score for one in written if not one.is_cut]
    refused = _refused(items)
    is_scored = benchmark.is_scored and not refused
    whole = estimate([item.score for item in items], clusters)
    return Score(
        benchmark=benchmark.name,
        metric=benchmark.metric,
        num_items=len(items),
        num_samples=max((len(item.written) for item in items), default=0) or 1,
        score=whole.mean if is_scored else None,
        interval=_interval(whole) if is_scored else None,
        finished_score=float(np.mean(finished)) if finished and is_scored else None,
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
    several = [item for item in items if len(item.choices) > 1]
    if several and all(_are_equally_likely(item) for item in several):
        return (
            "all choices of every item are equally likely: the model or server does not score the prompt; use a server "
            "with echo and logprobs, or the weights"
        )
    return ""


def _are_equally_likely(item: Item) -> bool:
    logprobs = [choice.logprob for choice in item.choices]
    return max(logprobs) - min(logprobs) < EQUALLY_LIKELY


def _extra(benchmark: Benchmark, items: Sequence[Item]) -> dict[str, float]:
    """pass@k and the majority's score, where there are several samples and scores are 0 or 1; other measures."""
    extra: dict[str, float] = {}
    names = Counter(name for item in items for name in item.metrics if name != benchmark.metric)
    extra |= {name: float(np.mean([i.metrics[name] for i in items])) for name, n in names.items() if n == len(items)}
    num_samples = min((len(item.written) for item in items), default=0)
    if num_samples < 2 or any(one.score not in (0.0, 1.0) for item in items for one in item.written):
        return extra
    right = [sum(one.score == 1.0 for one in item.written) for item in items]
    for k in [k for k in _powers(num_samples) if k > 1]:
        extra[f"pass@{k}"] = float(
            np.mean([pass_at_k(len(i.written), r, k) for i, r in zip(items, right, strict=True)])
        )
    if any(one.extracted is not None for item in items for one in item.written):
        votes = [_majority(item) for item in items]
        extra[f"majority@{num_samples}"] = float(np.mean(votes))
    return extra


def _majority(item: Item) -> float:
    chosen = majority([one.extracted for one in item.written], lambda a, b: a.strip() == b.strip())
    return 0.0 if chosen is None else item.written[chosen].score


def _powers(limit: int) -> Iterator[int]:
    k = 1
    while k < limit:
        yield k
        k *= 2
    yield limit


def _rolling(answered: Answered) -> tuple[Score, list[Item]]:
    """Perplexity tasks: bits per byte of whole texts; the lower, the better, so the score is its negative."""
    benchmark, asked = answered.benchmark, answered.asked
    texts = [str(one.requests[0].args[0]) for one in asked]
    sizes = [len(text.encode()) for text in texts]
    items = []
    for one, text, size, logprob in zip(asked, texts, sizes, answered.logprobs, strict=True):
        bits = -logprob / math.log(2) / max(1, size)
        items.append(
            Item(
                benchmark=benchmark.name,
                number=one.number,
                digest=_digest(text),
                prompt=text,
                target="",
                score=-bits,
                metrics={"bits_per_byte": bits, "num_bytes": size},
            )
        )
    score = score_of(Benchmark(benchmark.name, benchmark.tasks, "negative bits per byte", data=benchmark.data), items)
    total = sum(item.metrics["bits_per_byte"] * size for item, size in zip(items, sizes, strict=True)) / sum(sizes)
    return score.model_copy(update={"extra": {"bits_per_byte": total}}), items


def _interval(found: Estimate) -> Interval | None:
    return None if math.isnan(found.low) else Interval(low=found.low, high=found.high)


def _metric(benchmark: Benchmark, metrics: Mapping[str, float]) -> float:
    if benchmark.metric not in metrics:
        raise GlmforgeError(
            f"benchmark {benchmark.name}: the task does not measure {benchmark.metric} of each item; it measures "
            f"{', '.join(metrics) or 'nothing'}"
        )
    return metrics[benchmark.metric]


def _place(benchmark: Benchmark, asked: Asked) -> int:
    """The number of an item in the list of all tasks' items."""
    before = 0
    for task in benchmark.tasks:
        if task is asked.task:
            return before + asked.number
        before += len(task.eval_docs)
    raise AssertionError("the task is the benchmark's")


def _field(doc: Mapping[str, Any], name: str) -> str:
    return str(doc.get(name, "")) if name else ""


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content).encode(errors="replace")).hexdigest()[:32]
