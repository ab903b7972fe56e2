"""What a server did, for Prometheus: requests, tokens, queue, cache, times, errors by status.

Names are vLLM's where the thing is the same, so that its dashboards and alerts fit; the rest begins with `glmforge_`.
Counting needs no package; text is made by prometheus_client, of the extra `observe`. Times are seconds of the host
between the arrival of a request and what its reader is handed.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import psutil

from glmforge.extras import needed_for
from glmforge.generate.engine import Engine

_FIRST = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_BETWEEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_WHOLE = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)

_Series = Mapping[tuple[str, ...], float]


class Histogram:
    """Counts of values up to each of `bounds`, and of all."""

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self.name, self.text, self.bounds = name, text, bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """Each bound, and how many values are at most that."""
        return list(zip((*map(repr, self.bounds), "+Inf"), accumulate(self._counts), strict=True))


class ServerMetrics:
    """Counts since the server has started.

    Attributes:
        responses: by route and status.
        ended: answers by the reason of their end.
        num_prompt, num_cached, num_new: tokens of prompts, of them those found in the cache, and tokens of answers.
        first, between, whole: seconds to the first token, between two, and to the end of an answer.
    """

    def __init__(self) -> None:
        self.responses: Counter[tuple[str, int]] = Counter()
        self.ended: Counter[str] = Counter()
        self.num_prompt = self.num_cached = self.num_new = 0
        self.first = Histogram("vllm:time_to_first_token_seconds", "Seconds to the first token.", _FIRST)
        self.between = Histogram("vllm:inter_token_latency_seconds", "Seconds between two tokens.", _BETWEEN)
        self.whole = Histogram("vllm:e2e_request_latency_seconds", "Seconds to the end of an answer.", _WHOLE)

    def text(self, engine: Engine, num_active: int, model: str) -> tuple[bytes, str]:
        """All of them, and what the engine says, with their content type. Raises `MissingPackageError`.

        Always Prometheus' own form: as OpenMetrics, prometheus_client writes the colons of vLLM's names as underscores.
        """
        with needed_for("/metrics"):
            from prometheus_client.exposition import choose_encoder
        encode, content_type = choose_encoder("")
        return encode(_Collector(self._families(engine, num_active, model))), content_type

    def _families(self, engine: Engine, num_active: int, model: str) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        scheduler, done = engine.scheduler, engine.metrics
        for name, text, value in (
            ("vllm:prompt_tokens", "Tokens of prompts.", self.num_prompt),
            ("vllm:prefix_cache_queries", "Tokens of prompts looked up in the cache.", self.num_prompt),
            ("vllm:prefix_cache_hits", "Tokens of prompts found in the cache.", self.num_cached),
            ("vllm:generation_tokens", "Tokens of answers.", self.num_new),
            ("vllm:num_preemptions", "Sequences that gave their cache to others.", done.num_preempted),
            ("vllm:spec_decode_num_draft_tokens", "Tokens drafted.", done.num_drafted),
            ("vllm:spec_decode_num_accepted_tokens", "Drafted tokens that were right.", done.num_accepted),
            ("glmforge_engine_steps", "Steps of the engine.", done.num_steps),
            ("glmforge_engine_step_seconds", "Seconds that they took.", done.step_seconds),
        ):
            yield _family(CounterMetricFamily(name, text, labels=["model_name"]), {(model,): value})
        for name, text, value in (
            ("vllm:num_requests_running", "Sequences in the engine's steps.", len(scheduler.running)),
            ("vllm:num_requests_waiting", "Sequences that wait for their turn.", len(scheduler.waiting)),
            ("vllm:kv_cache_usage_perc", "Share of the cache that sequences hold, 0 to 1.", engine.memory.share_held),
            ("glmforge_requests_active", "Requests being answered.", num_active),
        ):
            yield _family(GaugeMetricFamily(name, text, labels=["model_name"]), {(model,): value})
        memory = GaugeMetricFamily("process_resident_memory_bytes", "Resident memory of the server.")
        yield _family(memory, {(): psutil.Process().memory_info().rss})
        responses = CounterMetricFamily(
            "glmforge_responses", "Responses by route and status.", labels=["route", "status"]
        )
        yield _family(responses, {(route, str(status)): n for (route, status), n in sorted(self.responses.items())})
        answers = CounterMetricFamily("glmforge_answers", "Answers by the reason of their end.", labels=["reason"])
        yield _family(answers, {(reason,): number for reason, number in sorted(self.ended.items())})
        for each in (self.first, self.between, self.whole):
            family = HistogramMetricFamily(each.name, each.text, labels=["model_name"])
            family.add_metric([model], each.buckets(), each.sum)
            yield family


class _Collector:
    """What prometheus_client reads families from."""

    def __init__(self, families: Iterator[Any]) -> None:
        self.collect = lambda: families


def _family(family: Any, series: _Series) -> Any:
    for labels, value in series.items():
        family.add_metric(labels, value)
    return family
