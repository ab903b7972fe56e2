"""Benchmarks that a model answers while it is trained: the same items each time, by all ranks, with sharded weights.

Replies are not kept: `glmforge evaluate --watch` is for results item by item.
"""

import time
from collections.abc import Sequence
from functools import partial

from glmforge.checkpoint.collective import broadcast, run_each
from glmforge.config.observe import BenchmarksConfig
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import CheckpointError, ConfigError, GlmforgeError
from glmforge.evaluate.benchmarks.catalog import Benchmark, open_benchmark
from glmforge.evaluate.benchmarks.harness import Asking, run_benchmark
from glmforge.evaluate.benchmarks.language_model import EngineLM
from glmforge.evaluate.benchmarks.model import Generation
from glmforge.evaluate.benchmarks.replies import ReplyStore
from glmforge.generate.config import EngineConfig
from glmforge.generate.engine import Engine
from glmforge.generate.sharded import ShardedModel
from glmforge.observe.alive import Alive, quiet
from glmforge.observe.metrics import Record, make_record
from glmforge.parallel.model import ParallelModel

PAGE_SIZE = 16


class BenchmarkAsker:
    """Asks what `config` names.

    Raises:
        ConfigError: a benchmark is unknown, or its data are missing.
    """

    def __init__(self, config: BenchmarksConfig, tokenizer: Tokenizer) -> None:
        self.config, self.tokenizer = config, tokenizer
        try:
            self.benchmarks = [open_benchmark(name, config.data) for name in config.names]
        except GlmforgeError as error:
            raise ConfigError(f"observe.benchmarks: {error}") from error
        self.asking = Asking(chat=config.chat, limit=config.limit)
        self.generation = Generation(max_new_tokens=config.max_new_tokens, temperature=0.0, thinking=config.thinking)

    def check(self, model: ParallelModel) -> None:
        """Raise a `GlmforgeError` where there is no room for an answer, or none can be judged. Collective."""
        page_bytes = ShardedModel(model).page_bytes(PAGE_SIZE)
        needed = -(-2 * self.config.max_new_tokens // PAGE_SIZE) * page_bytes
        if needed > self.config.cache_bytes:
            raise ConfigError(
                f"observe.benchmarks.cache_bytes: prompts and {self.config.max_new_tokens:,} tokens of an answer "
                f"need {needed:,} or more, not {self.config.cache_bytes:,}; raise it, or lower max_new_tokens"
            )
        run_each(partial(_try_judges, self.benchmarks))

    def ask(self, model: ParallelModel, alive: Alive = quiet) -> Sequence[Record]:
        """A record per benchmark, those of rank 0 on all ranks. Collective."""
        runner = ShardedModel(model)
        with runner.session():
            engine = Engine(runner, EngineConfig(self.config.cache_bytes, PAGE_SIZE), tokenizer=self.tokenizer)
            answering = EngineLM(engine, ReplyStore(None), self.generation, is_chat=self.config.chat, alive=alive)
            records = [run_each(partial(self._record, one, answering, alive)) for one in self.benchmarks]
        return broadcast(records, 0)  # a judge that runs out of time on one rank must not part them

    def _record(self, benchmark: Benchmark, answering: EngineLM, alive: Alive) -> Record:
        def on_scored(number: int) -> None:
            alive(f"{benchmark.name}, item {number:,}")

        started = time.perf_counter()
        try:
            score, _ = run_benchmark(benchmark, self.asking, answering, on_scored)
        except GlmforgeError as error:
            raise CheckpointError(f"observe.benchmarks: {error}") from error
        return make_record(
            benchmark=score.benchmark,
            benchmark_score=score.score,
            benchmark_low=None if score.interval is None else score.interval.low,
            benchmark_high=None if score.interval is None else score.interval.high,
            benchmark_finished_score=score.finished_score,
            benchmark_cut_share=None if score.num_finished is None else score.cut_share,
            benchmark_items=score.num_items,
            benchmark_seconds=time.perf_counter() - started,
        )


def _try_judges(benchmarks: Sequence[Benchmark]) -> None:
    """Have empty answers judged: what a judge lacks, such as a sandbox, is reported before the first step."""
    for task in (benchmark.tasks[0] for benchmark in benchmarks):
        if task.OUTPUT_TYPE == "generate_until":
            try:
                task.process_results(next(iter(task.eval_docs)), [""])
            except GlmforgeError as error:
                raise CheckpointError(f"observe.benchmarks: {error}") from error  # the kind that `run_each` passes on
            except Exception:  # noqa: BLE001 - a task's own function that does not expect an empty answer
                continue
