"""The servers of a run: they are started, given the policy's weights, asked, and replaced when they die.

All ranks make a `Fleet` and call its methods together. Requests are sent in threads while the ranks wait for each
other, so that no rank waits in a collective for longer than a moment, and a failure on one rank is one on all.
"""

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from glmforge.checkpoint.collective import broadcast, rank
from glmforge.config.rl_engine import RlEngineConfig
from glmforge.config.schema import RunConfig
from glmforge.generate.params import SamplingParams
from glmforge.observe.alive import Alive, quiet
from glmforge.parallel.model import ParallelModel
from glmforge.rl.engines.base import EngineError, EngineLostError, SampledGroup, together
from glmforge.rl.engines.http import HttpEngine
from glmforge.rl.engines.process import EngineProcess
from glmforge.rl.engines.served import GlmforgeEngine
from glmforge.rl.engines.sglang import SglangEngine
from glmforge.rl.engines.vllm import VllmEngine
from glmforge.rl.transfer.buckets import send_weights
from glmforge.rl.transfer.directory import write_adapter, write_weights

KINDS: dict[str, type[HttpEngine]] = {"glmforge": GlmforgeEngine, "vllm": VllmEngine, "sglang": SglangEngine}


class Fleet:
    """See above.

    Args:
        model: whose weights the servers are given.
        vocab_size: of the tokenizer.

    Attributes:
        metrics: of the last update, and restarts so far.
    """

    def __init__(
        self, settings: RlEngineConfig, config: RunConfig, model: ParallelModel, vocab_size: int, key: str
    ) -> None:
        self.settings, self.config, self.model = settings, config, model
        make = KINDS[settings.kind]
        self.engines = [make(url, settings, config.model, vocab_size, key) for url in settings.urls]
        self.directory = (settings.directory or Path(config.output_dir) / "engine").absolute()
        self.processes: list[EngineProcess] = []
        if settings.command is not None and rank() == 0:
            log = Path(config.output_dir).absolute() / "engine"
            self.processes = [
                EngineProcess(engine, settings.command, log / f"server-{number}.log", settings.start_s)
                for number, engine in enumerate(self.engines)
            ]
        self.metrics: dict[str, float] = {"engine_restarts": 0.0}
        self._version: int | None = None
        self._num_lost = 0
        self._weights: Path | None = None
        """What a server is started from; None: nothing was written so far."""

    @property
    def takes_buckets(self) -> bool:
        return self.settings.kind == "glmforge"

    def sample(
        self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], version: int, alive: Alive = quiet
    ) -> list[SampledGroup]:
        """The samples of this rank's prompts, under the weights as they are now, number `version`. Collective.

        What a dead server had not answered is asked again of its successor, with the same seeds. Raises `EngineError`.
        """
        answers: dict[int, SampledGroup] = {}

        def ask() -> None:
            open_ones = [place for place in range(len(prompts)) if place not in answers]
            engines = [self.engines[(rank() + place) % len(self.engines)] for place in open_ones]
            futures = [one.begin(prompts[at], params[at]) for one, at in zip(engines, open_ones, strict=True)]
            lost: EngineLostError | None = None
            for place, future in zip(open_ones, futures, strict=True):
                try:
                    answers[place] = future.result()
                except EngineLostError as error:
                    lost = error
            if lost is not None:
                raise lost

        while True:
            try:
                self.update(version, alive)
                together(ask, alive, "generation by the engine")
                if self._versions(alive) == {version}:
                    return [answers[place] for place in range(len(prompts))]
                raise EngineError(f"{self.engines[0].url}: its weights were changed by somebody else while it sampled")
            except EngineLostError as error:
                self._replace(str(error), alive)

    def update(self, version: int, alive: Alive = quiet) -> None:
        """Have all servers hold the weights as they are now, number `version`, unless they do. Collective."""
        self._write(version)
        if self._version is None:
            self._see_to_them(alive)
        if self._versions(alive) == {self._version} == {version}:
            return
        began = time.perf_counter()
        if self.takes_buckets:
            sent = send_weights(
                self.model.state_dict(), self.config.model, self.engines, version, self.settings.bucket_bytes, alive
            )
            seconds = time.perf_counter() - began
            self.metrics |= {"transfer_bytes_per_second": len(self.engines) * sent / seconds}
        else:
            together(lambda: self._load(version), alive, "the engine reads weights")
            seconds = time.perf_counter() - began
        self.metrics["transfer_seconds"] = seconds
        self._version = version

    def close(self) -> None:
        for process in self.processes:
            process.end()
        for engine in self.engines:
            engine.close()

    def _versions(self, alive: Alive) -> set[int | None]:
        """Of the servers' weights."""
        found = together(lambda: [one.version() for one in self.engines] if rank() == 0 else [], alive)
        return set(broadcast(found, 0))

    def _write(self, version: int) -> None:
        """Files of the weights, if servers are started from them or read them. Collective."""
        lora, tensors, old = self.config.lora, self.model.state_dict(), self._weights
        changes = not self.takes_buckets and lora is None
        target = self.directory / (f"weights-{version}" if changes else "weights")
        if old != target and (changes or self.settings.command is not None):
            dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[self.settings.dtype]
            write_weights(target, tensors, self.config.model, dtype, Path(self.config.data.tokenizer))
            self._weights = target
            if old is not None and rank() == 0:
                shutil.rmtree(old, ignore_errors=True)
        if lora is not None and self._version != version:
            adapter = self._update_of(version)
            if rank() == 0:
                shutil.rmtree(adapter, ignore_errors=True)
            write_adapter(adapter, tensors, self.config.model, lora, str(self.config.init_from))

    def _update_of(self, version: int) -> Path:
        return self.directory / (f"weights-{version}" if self.config.lora is None else f"adapter-{version % 2}")

    def _load(self, version: int) -> None:
        for engine in self.engines if rank() == 0 else ():
            assert isinstance(engine, VllmEngine | SglangEngine), "they read files"
            engine.load(self._update_of(version), version)

    def _see_to_them(self, alive: Alive) -> int:
        """Start what does not run; how many were started."""

        def see() -> int:
            assert self._weights is not None or not self.processes, "written before"
            return sum(process.see_to_it(self._weights or Path()) for process in self.processes)

        return broadcast(together(see, alive, "starting the engine"), 0)

    def _replace(self, problem: str, alive: Alive) -> None:
        self._num_lost += 1
        if self.settings.command is None:
            raise EngineError(f"{problem}; start the server again and run the same command to resume")
        if self._num_lost > self.settings.max_restarts:
            raise EngineError(f"{problem}; {self._num_lost} times in this run, more than rl.engine.max_restarts")
        self._version = None
        self.metrics["engine_restarts"] += self._see_to_them(alive)
