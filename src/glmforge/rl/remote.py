"""Servers that sample a run's answers in place of the engine in its own processes.

They are started, given the policy's weights, asked, and replaced when they die. All ranks make a `Fleet` and call its
methods together. Requests are sent in threads while the ranks wait for each other, so no rank waits in a collective
for longer than a moment, and a failure on one rank is one on all.
"""

import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from glmforge.checkpoint.collective import broadcast, rank
from glmforge.config.rl import RolloutConfig
from glmforge.config.rl_engine import RlEngineConfig
from glmforge.config.schema import RunConfig
from glmforge.generate.answer import Sample
from glmforge.generate.params import SamplingParams
from glmforge.observe.alive import Alive, quiet
from glmforge.parallel.model import ParallelModel
from glmforge.rl.engines.base import EngineError, EngineLostError, SampledGroup, together
from glmforge.rl.engines.process import EngineProcess
from glmforge.rl.engines.served import GlmforgeEngine
from glmforge.rl.engines.sglang import SglangEngine
from glmforge.rl.engines.vllm import VllmEngine
from glmforge.rl.rollout import Asked, Sampler
from glmforge.rl.samples import Answer
from glmforge.rl.transfer.buckets import send_weights
from glmforge.rl.transfer.directory import write_adapter, write_weights

_BUCKETS_OF_A_FILE = 4
_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


class Fleet:
    """See above.

    Args:
        model: whose weights the servers are given.
        vocab_size: of the tokenizer.
        key: the servers' API key; empty for none.
    """

    def __init__(
        self, settings: RlEngineConfig, config: RunConfig, model: ParallelModel, vocab_size: int, key: str = ""
    ) -> None:
        self.settings, self.config, self.model = settings, config, model
        kind = {"glmforge": GlmforgeEngine, "vllm": VllmEngine, "sglang": SglangEngine}[settings.kind]
        self.engines = [kind(url, settings, config.model, vocab_size, key) for url in settings.urls]
        run = Path(config.output_dir).absolute() / "engine"
        self.directory = (settings.directory or run).absolute()
        self.processes = [
            EngineProcess(engine, settings.command, run / f"server-{number}.log", settings.start_s)
            for number, engine in enumerate(self.engines)
            if settings.command is not None and rank() == 0
        ]
        self.num_restarts = self.num_updates = 0
        self._seconds, self._sent = 0.0, 0
        """Of transfers since `metrics` was called."""
        self.version: int | None = None
        """Of the weights that servers were sent last; None before that, and once one has died."""
        self._weights = self.directory
        """What a server is started from, once it has been written."""

    def sample(
        self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], version: int, alive: Alive = quiet
    ) -> list[SampledGroup]:
        """The samples of this rank's prompts, under the weights as they are now, number `version`. Collective.

        What a dead server had not answered is asked again of its successor, with the same seeds. Raises `EngineError`.
        """
        answers: dict[int, SampledGroup] = {}

        def ask() -> None:
            places = [place for place in range(len(prompts)) if place not in answers]
            futures = [self.begin(rank() + place, prompts[place], params[place]) for place in places]
            lost: EngineLostError | None = None
            for place, future in zip(places, futures, strict=True):
                try:
                    answers[place] = future.result()
                except EngineLostError as error:
                    lost = error
            if lost is not None:
                raise lost

        while True:
            self.update(version, alive)
            try:
                together(ask, alive, "generation by the engine")
                if self._versions(alive) != {version}:
                    raise EngineError(f"{self.engines[0].url}: its weights were changed while it sampled; start anew")
                return [answers[place] for place in range(len(prompts))]
            except EngineLostError as error:
                self.replace(error)

    def begin(self, number: int, prompt: Sequence[int], params: SamplingParams) -> "Future[SampledGroup]":
        """Ask a server, chosen by `number`, for the samples of a prompt; `EngineError` comes through the future."""
        return self.engines[number % len(self.engines)].begin(prompt, params)

    def update(self, version: int, alive: Alive = quiet) -> None:
        """Have all servers hold the weights as they are now, number `version`, unless they do. Collective.

        Dead ones are replaced. Raises `EngineError`.
        """
        while True:
            try:
                return self._update(version, alive)
            except EngineLostError as error:
                self.replace(error)

    def replace(self, error: EngineLostError) -> None:
        """Have the next update start dead servers. Raises `EngineError`: there is no command, or too many restarts."""
        self.num_restarts += 1
        if self.settings.command is None:
            raise EngineError(f"{error}; start the server again and run the same command to resume")
        if self.num_restarts > self.settings.max_restarts:
            raise EngineError(f"{error}; this happened more often than rl.engine.max_restarts")
        self.version = None

    def _update(self, version: int, alive: Alive) -> None:
        settings = self.settings
        held = set() if self.version is None else self._versions(alive)
        if held == {self.version} == {version}:
            return
        if held - {self.version, None}:
            raise EngineError(
                f"{self.engines[0].url}: another run has sent it weights; use separate servers for each run"
            )
        began, by_files = time.perf_counter(), settings.kind != "glmforge"
        if self.version is None or settings.restart:
            self._write(version, by_files=by_files)
            starts = [partial(one.start, self._weights, anew=settings.restart) for one in self.processes]
            together(lambda: [start() for start in starts], alive, "starting the engine")
        if by_files:
            self._write(version, by_files=True)
            together(lambda: self._load(version), alive, "the engine reads weights")
        else:
            tensors, bucket_bytes = self.model.state_dict(), settings.bucket_bytes
            sent = send_weights(tensors, self.config.model, self.engines, version, bucket_bytes, alive)  # type: ignore[arg-type]
            self._sent += sent * len(self.engines)
        self._seconds += time.perf_counter() - began
        self.num_updates += 1
        self.version = version

    def metrics(self) -> dict[str, float]:
        """Of transfers since the last call, and restarts so far."""
        found: dict[str, float] = {"engine_restarts": self.num_restarts, "transfer_seconds": self._seconds}
        if self._sent:
            found["transfer_bytes_per_second"] = self._sent / self._seconds
        self._seconds, self._sent = 0.0, 0
        return found

    def close(self) -> None:
        for process in self.processes:
            process.close()
        for engine in self.engines:
            engine.close()

    def _versions(self, alive: Alive) -> set[int | None]:
        """Of the servers' weights."""
        return set(broadcast(together(lambda: [one.version() for one in self.engines], alive), 0))

    def _write(self, version: int, *, by_files: bool) -> None:
        """Files of the weights, if servers are started from them or read them. Collective."""
        lora, tensors, old = self.config.lora, self.model.state_dict(), self._weights
        is_update = by_files and lora is None
        target = self.directory / (f"weights-{version}" if is_update else "weights")
        if target != old and (is_update or self.settings.command is not None):
            tokenizer, settings = Path(self.config.data.tokenizer), self.settings
            dtype, file_bytes = _DTYPES[settings.dtype], _BUCKETS_OF_A_FILE * settings.bucket_bytes
            write_weights(target, tensors, self.config.model, dtype, tokenizer, file_bytes)
            self._weights = target
            if old != self.directory and rank() == 0:
                shutil.rmtree(old, ignore_errors=True)
        if by_files and lora is not None:
            write_adapter(self._adapter, tensors, self.config.model, lora, str(self.config.init_from))

    @property
    def _adapter(self) -> Path:
        return self.directory / "adapter"

    def _load(self, version: int) -> None:
        for engine in self.engines if rank() == 0 else ():
            if self.config.lora is None and self.settings.restart:
                engine.number(version)
            else:
                engine.load(self._weights if self.config.lora is None else self._adapter, version)


class _Request(NamedTuple):
    """A group that a server samples: the version of the weights, and how many updates there had been."""

    asked: Asked
    version: int
    num_updates: int
    future: Future[SampledGroup]


class RemoteSampler(Sampler):
    """Answers by a fleet; all ranks call it together. It waits for all of them: `enough` is not heeded.

    Of ranks that share requests (tp, pp) only the first asks, and has answers. Prompts and seeds are those of
    `Sampler`, so a server of glmforge gives the answers that the engine would have given, but for rounding.
    """

    def __init__(
        self, config: RolloutConfig, fleet: Fleet, *, stop_ids: Sequence[int], vocab_size: int, seed: int
    ) -> None:
        super().__init__(config, fleet.model, stop_ids=stop_ids, vocab_size=vocab_size, seed=seed)
        self.fleet = fleet
        self.records_experts = self.records_experts and fleet.settings.kind == "glmforge"
        self._open: dict[int, _Request] = {}
        """By the number of the prompt, as the two below."""
        self._lost: dict[int, Asked] = {}
        self._arrived: dict[int, list[Answer]] = {}

    def sample(self, asked: Sequence[Asked], unfinished: Sequence[Answer] = (), **given: Any) -> list[Answer]:
        if not self.runner.is_first:
            asked, unfinished = (), ()
        return super().sample(asked, unfinished, **given)

    def begin(self, asked: Sequence[Asked]) -> None:
        """Have servers sample for this rank's share of these prompts while the caller goes on, under the weights that
        they have; and for those that servers had not answered when they died."""
        assert self.fleet.version is not None, "servers have weights"
        runner = self.runner
        mine = [one for one in asked if runner.is_first and one.number % runner.num_shares == runner.share]
        mine += self._lost.values()
        self.drop([one.number for one in (*asked, *mine)])
        for one in mine:
            params = self._params(self._seed(one.number), self.config.group_size)
            future = self.fleet.begin(one.number, list(one.ids), params)
            self._open[one.number] = _Request(one, self.fleet.version, self.fleet.num_updates, future)

    def wait(self, seconds: float) -> None:
        """Wait for answers of this rank's. Raises `EngineError`; `EngineLostError` if a server has died since the last
        update."""
        error: EngineLostError | None = None
        wait([one.future for one in self._open.values()], seconds, FIRST_COMPLETED)
        for one in [one for one in self._open.values() if one.future.done()]:
            number = one.asked.number
            del self._open[number]
            try:
                self._arrived[number] = self._answer(one.asked, one.version, one.future.result())
            except EngineLostError as raised:
                self._lost[number] = one.asked
                error = raised if one.num_updates == self.fleet.num_updates else error
        if error is not None:
            raise error

    def take(self) -> list[Answer]:
        """Answers that have come since the last call, of whole groups."""
        arrived, self._arrived = self._arrived, {}
        return [one for group in arrived.values() for one in group]

    def drop(self, numbers: Iterable[int]) -> None:
        """Forget requests for these prompts, and their answers."""
        for number in numbers:
            if (request := self._open.pop(number, None)) is not None:
                request.future.cancel()
            self._lost.pop(number, None)
            self._arrived.pop(number, None)

    def forget(self) -> None:
        """Drop all requests."""
        self.drop([*self._open, *self._lost, *self._arrived])

    def metrics(self) -> dict[str, float]:
        return self.fleet.metrics()

    def close(self) -> None:
        self.fleet.close()

    def _generate(
        self,
        prompts: Sequence[Sequence[int]],
        params: Sequence[SamplingParams],
        *,
        version: int,
        on_answer: Callable[[int, list[Sample]], None],
        stopped: Callable[[], bool],
        alive: Alive,
    ) -> list[list[Sample]]:
        return self.fleet.sample(prompts, params, version, alive)
