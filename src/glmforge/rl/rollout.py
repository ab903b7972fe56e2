"""Answers sampled with the weights that are trained, where they lie, on any layout.

The engine lives from the beginning of a rollout to its end: its cache is memory that training needs. Ranks sample for
prompts of their own; tp and pp ranks, which share requests, sample the same tokens. A seed is made of the run's seed,
the prompt and the sample, so what is sampled does not depend on the number of ranks, but for rounding.

An answer that is stopped in the middle goes on later, under other weights: each token keeps the log-probability, the
experts and the version of the weights that it was sampled with. Such answers go first, and a rollout does not end
before those of groups that were begun `MAX_WAIT` rollouts ago.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from glmforge.config.rl import RolloutConfig
from glmforge.data.stream.order import stream_key
from glmforge.errors import GlmforgeError
from glmforge.generate.answer import Sample
from glmforge.generate.config import EngineConfig
from glmforge.generate.engine import Engine
from glmforge.generate.params import SamplingParams
from glmforge.generate.sharded import ShardedModel
from glmforge.observe.alive import Alive, quiet
from glmforge.parallel.model import ParallelModel
from glmforge.rl.samples import Answer

PAGE_SIZE = 16
MAX_WAIT = 4
_MAX_BYTE = 256


class Asked(NamedTuple):
    """A prompt whose group is to be sampled: its number in the run's order, and its token ids."""

    number: int
    ids: Sequence[int]


class Sampler:
    """Samples answers; all ranks call it together.

    Args:
        model: in evaluation mode while it samples.
        stop_ids: tokens that end an answer.
        vocab_size: of the tokenizer: padding of the embedding is never sampled.
    """

    def __init__(
        self, config: RolloutConfig, model: ParallelModel, *, stop_ids: Sequence[int], vocab_size: int, seed: int
    ) -> None:
        self.config, self.model, self.seed = config, model, seed
        self.runner = ShardedModel(model, config.weight_bytes)
        self._stop_ids, self._vocab_size = tuple(stop_ids), vocab_size
        self.records_experts = config.replay and model.config.num_moe_layers > 0
        self._dtype = np.uint8 if model.config.n_routed_experts <= _MAX_BYTE else np.int16

    def sample(
        self,
        asked: Sequence[Asked],
        unfinished: Sequence[Answer] = (),
        *,
        version: int,
        enough: int | None = None,
        begun_before: int = 0,
        alive: Alive = quiet,
    ) -> list[Answer]:
        """The answers of this rank's prompts, unfinished ones too. Ranks of a tp and pp group give the same, or only
        the first of them gives some.

        Args:
            asked: prompts of all ranks, the same on each; every `num_shares`-th is this rank's.
            unfinished: this rank's own answers that go on.
            version: how often the weights have been updated.
            enough: end when this rank has so many of its groups complete; None waits for all.
            begun_before: unfinished answers that were begun under earlier weights than these are waited for.
        """
        mine = asked[self.runner.share :: self.runner.num_shares]
        prompts = [(*one.prompt_P, *one.tokens_N) for one in unfinished] + [tuple(one.ids) for one in mine]
        params = [self._params(self._seed(*one.key, len(one.tokens_N)), 1, len(one.tokens_N)) for one in unfinished]
        params += [self._params(self._seed(one.number), self.config.group_size) for one in mine]
        numbers = [one.prompt for one in unfinished] + [one.number for one in mine]
        missing = Counter(numbers)
        awaited = {one.prompt for one in unfinished if one.begun < begun_before}

        def on_answer(place: int, samples: list[Sample]) -> None:
            missing[numbers[place]] -= 1

        def is_enough() -> bool:
            complete = {number for number, count in missing.items() if count == 0}
            return enough is not None and len(complete) >= enough and awaited <= complete

        found = self._generate(
            [list(map(int, prompt)) for prompt in prompts],
            params,
            version=version,
            on_answer=on_answer,
            stopped=is_enough,
            alive=alive,
        )
        if error := next((sample.error for samples in found for sample in samples if sample.error), None):
            raise GlmforgeError(f"a prompt cannot be answered: {error}")
        gone_on = [self._continued(one, version, samples[0]) for one, samples in zip(unfinished, found, strict=False)]
        new = [self._answer(one, version, samples) for one, samples in zip(mine, found[len(unfinished) :], strict=True)]
        return [*(answer for group in new for answer in group), *gone_on]

    def _refuse_differing_weights(self) -> None:
        """At the end of a session. Collective."""
        if differing := self.runner.differing_weights():
            raise GlmforgeError(
                f"the engine's weights are not those that are trained: {', '.join(differing[:3])}; this is a "
                "defect of the program, please report it"
            )

    def metrics(self) -> dict[str, float]:
        """What the run's records tell of the last call, by name."""
        return {}

    def close(self) -> None:
        """Nothing is asked any more."""

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
        """The samples of each prompt; see `Engine.generate`. Collective."""
        with self.runner.session():
            size = min(self.config.cache_bytes, self._most_bytes(prompts, params))
            engine = Engine(self.runner, EngineConfig(size, PAGE_SIZE, max_sequences=self.config.max_sequences))
            found = engine.generate(prompts, params, on_answer=on_answer, stopped=stopped, alive=alive)
            self._refuse_differing_weights()
        return found

    def _most_bytes(self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]) -> int:
        """Of keys and values, if all prompts are kept and the longest answers are computed at the same time."""
        kept = [-(-len(prompt) // PAGE_SIZE) for prompt in prompts]
        lengths = [len(prompt) + one.max_new_tokens for prompt, one in zip(prompts, params, strict=True)]
        longest = max(lengths, default=0)
        at_once = min(self.config.max_sequences, sum(one.num_samples for one in params))
        num_pages = sum(kept) + at_once * (longest // PAGE_SIZE + 1) + 1
        return num_pages * self.runner.page_bytes(PAGE_SIZE)

    def _params(self, seed: int, num_samples: int, num_known: int = 0) -> SamplingParams:
        return SamplingParams(
            max_new_tokens=self.config.max_new_tokens - num_known,
            temperature=self.config.temperature,
            seed=seed,
            num_samples=num_samples,
            logprobs=0,
            experts=self.records_experts,
            stop_ids=self._stop_ids,
            vocab_size=self._vocab_size,
        )

    def _seed(self, *parts: int) -> int:
        return stream_key(self.seed, "rollout", *parts) % 2**63

    def _answer(self, asked: Asked, version: int, samples: Sequence[Sample]) -> list[Answer]:
        prompt_P = np.array(asked.ids, dtype=np.int32)
        return [
            Answer(
                prompt=asked.number,
                sample=number,
                prompt_P=prompt_P,
                tokens_N=np.array(sample.tokens, dtype=np.int32),
                logprobs_N=_logprobs(sample),
                versions_N=np.array(sample.versions or [version] * len(sample.tokens), dtype=np.int32),
                begun=version,
                finished=_finished(sample),
                experts=self._experts(sample),
            )
            for number, sample in enumerate(samples)
        ]

    def _continued(self, one: Answer, version: int, sample: Sample) -> Answer:
        """What was sampled before stays as it was; the experts of its last token are known only now."""
        experts = self._experts(sample)
        if experts is not None and one.experts is not None:
            experts = np.concatenate((one.experts, experts[len(one.experts) :]))
        return one.changed(
            tokens_N=np.append(one.tokens_N, np.array(sample.tokens, dtype=np.int32)),
            logprobs_N=np.append(one.logprobs_N, _logprobs(sample)),
            versions_N=np.append(one.versions_N, np.full(len(sample.tokens), version, dtype=np.int32)),
            finished=_finished(sample),
            experts=experts,
        )

    def _experts(self, sample: Sample) -> "np.ndarray | None":
        if sample.details is None or sample.details.experts_TMK is None or not sample.tokens:
            return None  # of a prompt that was not computed to its end nothing is known
        return sample.details.experts_TMK.numpy().astype(self._dtype)


def _logprobs(sample: Sample) -> "np.ndarray":
    return np.array([one.logprob for one in sample.logprobs], dtype=np.float32)


def _finished(sample: Sample) -> str:
    return sample.finished if sample.finished in ("stop", "length") else ""
