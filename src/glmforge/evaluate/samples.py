"""Texts that a model writes while it is trained: prompts go to the ranks in turn, answers to all of them.

Every prompt has a seed of its own, so the texts do not depend on the number of ranks (but for rounding, which may tip a
choice).
"""

import time
from collections.abc import Iterable

import torch.distributed as dist

from glmforge.config.model import ModelConfig
from glmforge.config.observe import SamplesConfig
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import ConfigError
from glmforge.generate.config import EngineConfig
from glmforge.generate.engine import Engine, Sample
from glmforge.generate.params import SamplingParams
from glmforge.generate.sharded import ShardedModel
from glmforge.observe.metrics import Record, make_record
from glmforge.parallel.model import ParallelModel

PAGE_SIZE = 16


class SampleWriter:
    """Has a model write what `config` asks for."""

    def __init__(self, config: SamplesConfig, model: ModelConfig, tokenizer: Tokenizer) -> None:
        self.config, self.tokenizer = config, tokenizer
        self.prompts = [tokenizer.encode(prompt) for prompt in config.prompts]
        self.stop_ids = tuple(model.eos_token_id)

    def check(self, model: ParallelModel) -> None:
        """Raise `ConfigError` if a text has no room. Collective."""
        longest = max(map(len, self.prompts)) + self.config.max_new_tokens
        positions = model.config.max_position_embeddings
        if longest > positions:
            raise ConfigError(
                f"observe.samples.max_new_tokens: the longest prompt and {self.config.max_new_tokens:,} tokens need "
                f"{longest:,} positions, the model has {positions:,} (model.max_position_embeddings); lower it"
            )
        needed = -(-longest // PAGE_SIZE) * ShardedModel(model).page_bytes(PAGE_SIZE)
        if needed > self.config.cache_bytes:
            raise ConfigError(
                f"observe.samples.cache_bytes: the longest prompt and its answer need {needed:,}, not "
                f"{self.config.cache_bytes:,}; raise it, or lower max_new_tokens"
            )

    def write(self, model: ParallelModel) -> list[Record]:
        """One record per text, in the order of the prompts, on every rank. Collective."""
        started = time.perf_counter()
        runner = ShardedModel(model, self.config.weight_bytes)
        mine = range(runner.share, len(self.prompts), runner.num_shares)
        with runner.session():
            engine = Engine(runner, EngineConfig(self._cache_bytes(runner, mine), PAGE_SIZE))
            answers = engine.generate([self.prompts[index] for index in mine], [self._params(index) for index in mine])
        found = _gathered(dict(zip(mine, answers, strict=True)) if runner.speaks else {})
        cost = make_record(
            sampling_seconds=time.perf_counter() - started,
            sampling_cache_bytes=engine.config.cache_bytes,
            sampling_weight_bytes=runner.weight_bytes.kept,
            sampling_regathered_bytes=runner.weight_bytes.passing,
        )
        return [
            self._record(index, number, sample) | cost
            for index, samples in sorted(found.items())
            for number, sample in enumerate(samples)
        ]

    def _cache_bytes(self, runner: ShardedModel, mine: Iterable[int]) -> int:
        """Room for all of these prompts' answers at once, as far as it may be had; a page where there is none."""
        lengths = [len(self.prompts[index]) + self.config.max_new_tokens for index in mine]
        num_pages = self.config.num_samples * sum(-(-length // PAGE_SIZE) for length in lengths)
        return min(max(num_pages, 1) * runner.page_bytes(PAGE_SIZE), self.config.cache_bytes)

    def _params(self, index: int) -> SamplingParams:
        config = self.config
        return SamplingParams(
            max_new_tokens=config.max_new_tokens,
            temperature=config.temperature,
            top_p=config.top_p,
            seed=config.seed + index,
            num_samples=config.num_samples,
            stop_ids=self.stop_ids,
            vocab_size=self.tokenizer.vocab_size,
        )

    def _record(self, index: int, number: int, sample: Sample) -> Record:
        tokens = sample.tokens[:-1] if sample.finished == "stop" else sample.tokens
        return make_record(
            prompt=self.config.prompts[index],
            sample=number,
            completion=self.tokenizer.decode(tokens),
            finished=sample.finished,
            new_tokens=len(sample.tokens),
        )


def _gathered(mine: dict[int, list[Sample]]) -> dict[int, list[Sample]]:
    """The answers of all ranks."""
    if not dist.is_initialized():
        return mine
    parts: list[dict[int, list[Sample]]] = [{}] * dist.get_world_size()
    dist.all_gather_object(parts, mine)
    return {index: samples for part in parts for index, samples in part.items()}
