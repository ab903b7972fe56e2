"""What a server did, in Prometheus' text form: requests, tokens, queue, cache, times, errors by status.

Times are seconds of the host between the arrival of a request and what its reader is handed.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence

import psutil

from glmforge.generate.engine import Engine

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_FIRST = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_BETWEEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_WHOLE = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Histogram:
    """Counts of values up to each of `bounds`, and of all."""

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self.name, self.text, self.bounds = name, text, bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self._sum += value

    def lines(self) -> Iterator[str]:
        """In Prometheus' text form."""
        yield from _head(self.name, self.text, "histogram")
        total = 0
        for bound, count in zip((*map(repr, self.bounds), "+Inf"), self._counts, strict=True):
            total += count
            yield f'{self.name}_bucket{{le="{bound}"}} {total}'
        yield f"{self.name}_sum {self._sum}"
        yield f"{self.name}_count {total}"


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
        self.first = Histogram("glmforge_time_to_first_token_seconds", "Seconds to the first token.", _FIRST)
        self.between = Histogram("glmforge_time_between_tokens_seconds", "Seconds between two tokens.", _BETWEEN)
        self.whole = Histogram("glmforge_request_seconds", "Seconds to the end of an answer.", _WHOLE)

    def text(self, engine: Engine, num_active: int) -> str:
        """All of them, and what the engine says."""
        scheduler, done = engine.scheduler, engine.metrics
        counters = {
            "prompt_tokens_total": ("Tokens of prompts.", self.num_prompt),
            "cached_prompt_tokens_total": ("Tokens of prompts found in the cache.", self.num_cached),
            "generated_tokens_total": ("Tokens of answers.", self.num_new),
            "engine_steps_total": ("Steps of the engine.", done.num_steps),
            "engine_step_seconds_total": ("Seconds that they took.", done.step_seconds),
            "preemptions_total": ("Sequences that gave their cache to others.", done.num_preempted),
            "drafted_tokens_total": ("Tokens drafted.", done.num_drafted),
            "accepted_tokens_total": ("Drafted tokens that were right.", done.num_accepted),
        }
        gauges = {
            "requests_active": ("Requests being answered.", num_active),
            "sequences_running": ("Sequences in the engine's steps.", len(scheduler.running)),
            "sequences_waiting": ("Sequences that wait for their turn.", len(scheduler.waiting)),
            "cache_used_ratio": ("Share of the cache that sequences hold.", engine.memory.share_held),
        }
        lines = [
            *_head("process_resident_memory_bytes", "Resident memory of the server.", "gauge"),
            f"process_resident_memory_bytes {psutil.Process().memory_info().rss}",
        ]
        for kind, table in (("counter", counters), ("gauge", gauges)):
            for name, (text, value) in table.items():
                lines += [*_head(f"glmforge_{name}", text, kind), f"glmforge_{name} {value}"]
        lines += _head("glmforge_responses_total", "Responses by route and status.", "counter")
        for (route, status), count in sorted(self.responses.items()):
            lines.append(f'glmforge_responses_total{{route="{route}",status="{status}"}} {count}')
        lines += _head("glmforge_answers_total", "Answers by the reason of their end.", "counter")
        lines += [f'glmforge_answers_total{{reason="{reason}"}} {n}' for reason, n in sorted(self.ended.items())]
        for histogram in (self.first, self.between, self.whole):
            lines += histogram.lines()
        return "\n".join(lines) + "\n"


def _head(name: str, text: str, kind: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
