"""Texts that a model writes while it is trained: prompts go to the ranks in turn, answers to all of them.

Prompts are the configuration's, or come from held-out conversations. Of the answers to those it is also counted how
many end by themselves and how many are well-formed: a model that is learning to converse has to learn both.

Every prompt has a seed of its own, so the texts do not depend on the number of ranks (but for rounding, which may tip a
choice).
"""

import logging
import time
from collections.abc import Iterable, Mapping, Sequence

import torch.distributed as dist

from glmforge.config.model import ModelConfig
from glmforge.config.observe import SamplesConfig
from glmforge.data.tokens.special import CONTROL_TOKENS
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import ConfigError
from glmforge.evaluate.bits_per_byte import HeldOut
from glmforge.evaluate.held_out_prompts import HeldOutPrompt, held_out_prompts
from glmforge.generate.config import EngineConfig
from glmforge.generate.engine import Engine, Sample
from glmforge.generate.params import SamplingParams
from glmforge.generate.sharded import ShardedModel
from glmforge.observe.alive import Alive, quiet
from glmforge.observe.metrics import Record, make_record
from glmforge.parallel.model import ParallelModel
from glmforge.verify.reply import MalformedReply, parse_reply

PAGE_SIZE = 16

logger = logging.getLogger(__name__)


class SampleWriter:
    """Has a model write what `config` asks for.

    Raises:
        ConfigError: prompts of held-out conversations are requested, and `held_out` has none.
    """

    def __init__(
        self, config: SamplesConfig, model: ModelConfig, tokenizer: Tokenizer, held_out: Sequence[HeldOut] = ()
    ) -> None:
        self.config, self.tokenizer = config, tokenizer
        self.prompts = [tokenizer.encode(prompt) for prompt in config.prompts]
        self.stop_ids = tuple(model.eos_token_id)
        self._control_ids = frozenset(map(tokenizer.special_id, CONTROL_TOKENS))
        self._conversations = [each for each in held_out if each.shard.loss is not None] if config.held_out else []
        self._held_out: list[HeldOutPrompt] = []  # those of `prompts` behind the configuration's
        if config.held_out and not self._conversations:
            raise ConfigError(
                "observe.samples.held_out: data.held_out has no conversation source; add a conversation file "
                "(.jsonl, .json, .parquet) or a shard with loss weights, or set held_out to 0"
            )

    def check(self, model: ParallelModel) -> None:
        """Choose the held-out prompts that leave room for an answer. Raises `ConfigError` if a given one does not.
        Collective."""
        longest = max(map(len, self.prompts), default=0) + self.config.max_new_tokens
        positions = model.config.max_position_embeddings
        if longest > positions:
            raise ConfigError(
                f"observe.samples.max_new_tokens: the longest prompt and {self.config.max_new_tokens:,} tokens need "
                f"{longest:,} positions, the model has {positions:,} (model.max_position_embeddings); lower it"
            )
        page_bytes = ShardedModel(model).page_bytes(PAGE_SIZE)
        needed = -(-longest // PAGE_SIZE) * page_bytes
        if needed > self.config.cache_bytes:
            raise ConfigError(
                f"observe.samples.cache_bytes: the longest prompt and its answer need {needed:,}, not "
                f"{self.config.cache_bytes:,}; raise it, or lower max_new_tokens"
            )
        room = min(positions, self.config.cache_bytes // page_bytes * PAGE_SIZE) - self.config.max_new_tokens
        self._take_held_out(room, say_so=model.world.is_main)

    def write(self, model: ParallelModel, alive: Alive = quiet) -> tuple[list[Record], list[Record]]:
        """One record per text, in the order of the prompts, and one per source whose prompts were answered; on every
        rank. Collective."""
        started = time.perf_counter()
        runner = ShardedModel(model, self.config.weight_bytes)
        mine = range(runner.share, len(self.prompts), runner.num_shares)
        with runner.session():
            engine = Engine(runner, EngineConfig(self._cache_bytes(runner, mine), PAGE_SIZE))
            params = [self._params(index) for index in mine]
            answers = engine.generate([self.prompts[index] for index in mine], params, alive=alive)
        found = _gathered(dict(zip(mine, answers, strict=True)) if runner.is_first else {})
        cost = make_record(
            sampling_seconds=time.perf_counter() - started,
            sampling_cache_bytes=engine.config.cache_bytes,
            sampling_weight_bytes=runner.weight_bytes.kept,
            sampling_regathered_bytes=runner.weight_bytes.passing,
        )
        texts = [
            self._record(index, number, sample) | cost
            for index, samples in sorted(found.items())
            for number, sample in enumerate(samples)
        ]
        return texts, [_counted(source, texts) for source in dict.fromkeys(each.source for each in self._held_out)]

    def _take_held_out(self, room: int, *, say_so: bool) -> None:
        """Put the held-out prompts of at most `room` tokens behind the given ones."""
        del self.prompts[len(self.config.prompts) :], self._held_out[:]
        for each in self._conversations:
            number = min(self.config.held_out, each.shard.num_documents)
            chosen = held_out_prompts(
                each.shard, each.name, number=number, max_tokens=room, vocab_size=self.tokenizer.vocab_size
            )
            found = list(chosen)
            if say_so and len(found) < number:
                logger.warning(
                    "observe.samples: %d of %d prompts of %s are skipped; the model's positions and cache_bytes "
                    "allow prompts of up to %s tokens besides max_new_tokens",
                    number - len(found),
                    number,
                    each.name,
                    f"{max(room, 0):,}",
                )
            self._held_out += found
            self.prompts += [prompt.ids for prompt in found]

    def _cache_bytes(self, runner: ShardedModel, mine: Iterable[int]) -> int:
        """Room for all of these prompts' answers at once, within the limit; one page without prompts."""
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
        own = index - len(self.config.prompts)
        return make_record(
            **({"prompt": self.config.prompts[index]} if own < 0 else self._of_held_out(self._held_out[own], tokens)),
            sample=number,
            completion=self.tokenizer.decode(tokens),
            finished=sample.finished,
            new_tokens=len(sample.tokens),
        )

    def _of_held_out(self, prompt: HeldOutPrompt, tokens: Sequence[int]) -> Mapping[str, object]:
        """What the record of an answer, `tokens` without the one that stopped it, says beside the answer."""
        reference = prompt.reference[:-1] if prompt.reference[-1] in self.stop_ids else prompt.reference
        return {
            "source": prompt.source,
            "prompt": self.tokenizer.decode(prompt.ids),
            "reference": self.tokenizer.decode(reference),
            "malformed": self._malformed(tokens),
        }

    def _malformed(self, tokens: Sequence[int]) -> str:
        """What is wrong with an answer's form, "" if nothing is."""
        control = next((token for token in tokens if token in self._control_ids), None)
        if control is not None:
            return f"holds {self.tokenizer.id_to_token(control)}"
        try:
            parse_reply(self.tokenizer.decode(tokens))
        except MalformedReply as problem:
            return str(problem)
        return ""


def _counted(source: str, texts: Sequence[Record]) -> Record:
    """Which shares of the answers to a source's prompts end by themselves, and are well-formed."""
    answers = [text for text in texts if text.get("source") == source]
    return make_record(
        source=source,
        num_answers=len(answers),
        stopped=sum(answer["finished"] == "stop" for answer in answers) / len(answers),
        well_formed=sum(not answer["malformed"] for answer in answers) / len(answers),
    )


def _gathered(mine: dict[int, list[Sample]]) -> dict[int, list[Sample]]:
    """The answers of all ranks."""
    if not dist.is_initialized():
        return mine
    parts: list[dict[int, list[Sample]]] = [{}] * dist.get_world_size()
    dist.all_gather_object(parts, mine)
    return {index: samples for part in parts for index, samples in part.items()}
