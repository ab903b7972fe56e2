"""Rollouts as a source of batches: sample, reward, compare, score, pack; then the trainer steps on them.

A rollout gives `steps_per_rollout` steps. Groups are taken in the order of their prompts, and prompt number n of a run
is a function of the seed alone, so the only position is the next prompt. What is sampled and not trained on yet
(complete groups, unfinished answers, the rows of further steps) is in the checkpoint: a resumed run samples nothing
twice and loses nothing. In checkpoints answers lie with the data rank that trains on them; with another number of ranks
they are dealt again.

Shapes: N tokens of an answer, K answers of a group.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import numpy as np

from glmforge.backend.native import NativeBackend
from glmforge.config.rl import RlConfig
from glmforge.config.schema import RunConfig
from glmforge.observe.metric_table import Metric
from glmforge.optim.schedule import learning_rate_schedule
from glmforge.parallel.model import ParallelModel
from glmforge.rl.advantages import has_spread
from glmforge.rl.exchange import deal, gathered, send
from glmforge.rl.models import Models, rewards_of, with_advantages
from glmforge.rl.rollout import MAX_WAIT, Asked, Sampler
from glmforge.rl.samples import Answer, by_group, from_bytes, to_bytes
from glmforge.training.source import BatchSource, Phase, Position, Range, StepInput, Total

T = TypeVar("T")

METRICS = (
    Metric("reward", "reward", "rl", "mean reward of the answers of a rollout"),
    Metric("reward_terms", "reward", "rl", "mean value of each term, without its weight", labels=("term",)),
    Metric(
        "reward_by_source", "reward", "rl", "mean reward of the answers to each source's prompts", labels=("source",)
    ),
    Metric("reward_sampled", "reward", "rl", "mean reward of all answers that were sampled, of dropped groups, too"),
    Metric("missing_groups", "groups", "rl", "groups with a spread that rl.rollout.max_rounds rounds did not find"),
    Metric("skipped_steps", "steps", "rl", "1 if there was nothing to learn from: the weights stayed as they were"),
    Metric("equal_share", "share", "rl", "groups without a spread of rewards"),
    Metric("failed_answers", "answers", "rl", "answers whose verifier failed; they are not trained on"),
    Metric("answers_cut_share", "share", "rl", "answers that reached max_new_tokens"),
    Metric("answer_tokens", "tokens", "rl", "mean length of the answers"),
    Metric("stale_share", "share", "rl", "answers that were begun under earlier weights"),
    Metric("age_mean", "updates", "rl", "mean number of weight updates between requesting and training on an answer"),
    Metric("age_max", "updates", "rl", "age of the oldest answer"),
    Metric("versions_mean", "versions", "rl", "mean number of weight versions per answer"),
    Metric("rollout_seconds", "s", "rl", "time for sampling the answers of a rollout and rewarding them"),
    Metric("answer_wait_seconds", "s", "rl", "part of rollout_seconds spent waiting for servers (rl.schedule)"),
    Metric("transfer_seconds", "s", "rl", "time for giving weights to the servers of rl.engine, their start included"),
    Metric("transfer_bytes_per_second", "B/s", "rl", "weights sent to them, all servers together; not for files"),
    Metric("engine_restarts", "restarts", "rl", "how often dead servers have been replaced so far"),
    Metric("scoring_seconds", "s", "rl", "time for log-probabilities under reference and policy, and for values"),
)


class Prompts(Protocol):
    """The prompts of a run in its order, which has no end."""

    def __getitem__(self, number: int) -> Asked: ...


Score = Callable[[Sequence[Answer], Sequence[float] | None], Sequence[Answer]]
"""Gives complete answers their rewards, on the rank that calls it; takes what a reward model says of each, if there is
one."""


class RolloutSource(BatchSource):
    """See above. All ranks make it together.

    Args:
        source_of: the source of a prompt, for records.
        reference: the model that the policy is kept near; None: the policy without its adapters, if any is needed.
        critic: gives values, for advantages of kind "gae".
        reward_model: scores answers by its head `score`, at their last token.
        sampler: samples the answers; None: single ones, with the engine of this process. `close` closes it.
        write: takes the answers of each step as they are trained on, on this rank, with the step.
    """

    def __init__(
        self,
        config: RunConfig,
        settings: RlConfig,
        backend: NativeBackend,
        prompts: Prompts,
        score: Score,
        *,
        vocab_size: int,
        source_of: Callable[[int], str] = lambda number: "",
        reference: ParallelModel | None = None,
        critic: ParallelModel | None = None,
        reward_model: ParallelModel | None = None,
        sampler: Sampler | None = None,
        write: Callable[[int, Sequence[Answer]], None] = lambda step, answers: None,
    ) -> None:
        self.config, self.settings, self.backend, self.prompts = config, settings, backend, prompts
        self._score, self._write, self._source_of = score, write, source_of
        (self._phase_config,) = config.phases
        self.models = Models(config, settings, backend, reference, critic, reward_model)
        self.world = backend.world
        self.sampler = sampler or Sampler(
            settings.rollout,
            backend.model,
            stop_ids=config.model.eos_token_id,
            vocab_size=vocab_size,
            seed=config.seed,
        )
        self._position = Position()
        self._learning_rate = learning_rate_schedule(config)
        phase = self._phase_config
        self._phase = Phase(
            name=phase.name,
            objective=self.models.objective,
            micro_batch_size=self.models.micro_batch_size,
            balance=phase.balance,
        )
        self._next_prompt = 0
        self._again: list[int] = []
        """Prompts that were asked for before, and are asked for again before new ones."""
        self._steps: list[list[Answer]] = []
        self._waiting: list[Answer] = []
        self._unfinished: list[Answer] = []
        self._must_deal = False
        self._metrics: dict[str, Any] = {}

    # What the trainer asks.

    @property
    def position(self) -> Position:
        return self._position

    @property
    def total(self) -> Total:
        return Total(self._phase_config.num_steps)

    def next(self) -> StepInput | None:
        """The next step's answers. A step without any, on no rank, leaves the weights as they are."""
        phase, done = self._phase_config, self._num_steps
        if done >= phase.num_steps:
            return None
        self._metrics = {}
        if self._must_deal:
            self._deal_again()
        if not self._steps:
            self._roll_out(min(self.settings.steps_per_rollout, phase.num_steps - done))
        answers = self._steps.pop(0)
        self._write(done + 1, answers)
        is_empty = not any(gathered(len(answers)))
        self._metrics["skipped_steps"] = int(is_empty)
        _, batch = self.models.batch(answers)
        first = done * phase.batch_size
        num_tokens = batch.num_tokens * self.world.layout.data_ranks
        self._position = self._position.after(phase.name, first + phase.batch_size, num_tokens)
        progress = done + 1 if self.config.optim.schedule_unit == "steps" else self._position.tokens
        return StepInput(
            batch,
            self._phase,
            lr=0.0 if is_empty else self._learning_rate(progress),
            first_sample=first,
            position=self._position,
            is_last=done + 1 == phase.num_steps,
        )

    def leave_out(self, skipped: Mapping[str, Sequence[Range]]) -> None:
        self._position = self._position.leaving_out(skipped)

    def state_dict(self) -> dict[str, Any]:
        return {"next_prompt": self._next_prompt, "again": self._again}

    def load_state_dict(self, state: Mapping[str, Any], position: Position) -> Sequence[str]:
        self._next_prompt, self._position = int(state.get("next_prompt", 0)), position
        self._again = list(map(int, state.get("again", [])))
        return []

    def state_files(self) -> Mapping[str, bytes]:
        parts = {f"step-{number}.npz": some for number, some in enumerate(self._steps)}
        parts |= {"waiting.npz": self._waiting, "unfinished.npz": self._unfinished}
        return {name: to_bytes(some) for name, some in parts.items()}

    def load_state_files(self, files: Sequence[Mapping[str, bytes]]) -> None:
        names = {name for some in files for name in some if name.startswith("step-")}
        self._steps = [_joined(files, name) for name in sorted(names, key=lambda name: (len(name), name))]
        self._waiting, self._unfinished = _joined(files, "waiting.npz"), _joined(files, "unfinished.npz")
        self._must_deal = True

    def metrics(self) -> dict[str, Any]:
        return self._metrics

    def close(self) -> None:
        self.sampler.close()

    def answers_to(self, numbers: Sequence[int]) -> tuple[list[Answer], float]:
        """Rewarded answers of all ranks to these prompts, and the seconds of sampling. The source stays as it was.
        Collective."""
        started = time.perf_counter()
        with self.backend.evaluating():
            sampled = self.sampler.sample([self.prompts[number] for number in numbers], version=0, alive=self.alive)
            seconds = time.perf_counter() - started
            return self._all(self._rewarded(sampled)), seconds

    # A rollout.

    def _roll_out(self, num_steps: int) -> None:
        """Sample and prepare the answers of so many steps. Collective."""
        settings = self.settings
        seconds: dict[str, float] = {}
        group_size = settings.rollout.group_size
        groups_per_step = self._phase_config.batch_size // group_size
        with _timed(seconds, "rollout"), self.backend.evaluating():
            groups = self._sample(num_steps * groups_per_step)
        with _timed(seconds, "scoring"):
            mine = [one for group in groups.values() for one in with_advantages(group, settings.advantage.kind)]
            chosen = sorted(self._all(list(groups)))
            of_step = {number: place // groups_per_step for place, number in enumerate(chosen)}
            self._steps = [
                self._send([one for one in mine if of_step[one.prompt] == step]) for step in range(num_steps)
            ]
            self._waiting = self._send(self._waiting, by_group=True)
            self._unfinished = self._send(self._unfinished, by_group=True)
            with self.backend.evaluating():
                self._steps = [self.models.score(answers, self._num_steps, self.alive) for answers in self._steps]
        self._metrics |= {f"{name}_seconds": value for name, value in seconds.items()} | self.sampler.metrics()

    def _sample(self, wanted: int) -> dict[int, list[Answer]]:
        """Groups with rewards, those that were sampled here: over all ranks as many as wanted, or as were found in
        `max_rounds` rounds. Collective."""
        rollout, counts = self.settings.rollout, Counter[str]()
        ready, unfinished = by_group(self._mine(self._waiting)), self._mine(self._unfinished)
        for _ in range(rollout.max_rounds):
            num_missing = wanted - len(self._all(list(ready)))
            if num_missing <= 0:
                break
            num_open = len(self._all(list(by_group(unfinished))))
            done, open_ones = _split(unfinished)
            sampled = self.sampler.sample(
                self._ask(max(0, math.ceil(num_missing * rollout.over_sampling) - num_open)),
                open_ones,
                version=self._num_steps,
                enough=-(-num_missing // self.sampler.runner.num_shares) if rollout.partial else None,
                begun_before=self._num_steps - (MAX_WAIT - 1) * self.settings.steps_per_rollout,
                alive=self.alive,
            )
            groups = by_group([*done, *sampled])
            is_open = {number: any(not one.finished for one in group) for number, group in groups.items()}
            unfinished = [one for number, group in groups.items() if is_open[number] for one in group]
            scored = self._rewarded([one for number, group in groups.items() if not is_open[number] for one in group])
            ready |= self._kept(by_group(scored), counts)
        chosen = set(sorted(self._all(list(ready)))[:wanted])
        self._waiting = [one for number, group in ready.items() if number not in chosen for one in group]
        self._unfinished = unfinished
        taken = {number: group for number, group in ready.items() if number in chosen}
        self._count(counts, [one for group in taken.values() for one in group])
        self._metrics["missing_groups"] = wanted - len(chosen)
        return taken

    def _ask(self, number: int) -> list[Asked]:
        again, self._again = self._again[:number], self._again[number:]
        first, self._next_prompt = self._next_prompt, self._next_prompt + number - len(again)
        return [self.prompts[one] for one in (*again, *range(first, self._next_prompt))]

    def _rewarded(self, answers: Sequence[Answer]) -> list[Answer]:
        """With rewards, which one rank of those that sampled the same computes. Collective."""
        scores = self.models.reward_scores(self._send(answers)) if self.models.reward_model is not None else None
        given = None if scores is None else [scores[one.key] for one in answers]
        scored = self._score(answers, given) if self._speaks else []
        verdicts = {one.key: (one.reward, one.terms, one.failed) for one in scored}
        known = {key: verdict for part in gathered(verdicts) for key, verdict in part.items()}
        names = ("reward", "terms", "failed")
        return [one.changed(**dict(zip(names, known[one.key], strict=True))) for one in answers]

    def _kept(self, groups: Mapping[int, list[Answer]], counts: Counter[str]) -> dict[int, list[Answer]]:
        """Those that there is something to learn from."""
        kept = {}
        for number, group in groups.items():
            rewards_K = rewards_of(group)
            spread = has_spread(rewards_K)
            known = [one.reward for one in group if one.reward is not None]
            counts.update({"groups": 1, "equal": not spread, "failed": len(group) - len(known)})
            counts.update({"rewarded": len(known), "reward": sum(known)})
            if spread or (not self.settings.rollout.drop_equal and np.isfinite(rewards_K).any()):
                kept[number] = group
        return kept

    def _count(self, counts: Counter[str], chosen: Sequence[Answer]) -> None:
        """Numbers of the rollout over all ranks. Collective."""
        facts = [
            (
                one.reward,
                one.terms,
                self._source_of(one.prompt),
                one.is_cut,
                int(one.own_N.sum()),
                self._is_stale(one),
                self._num_steps - one.begun,
                len(np.unique(one.versions_N)),
            )
            for one in chosen
            if one.episode is None
        ]
        total: Counter[str] = Counter()
        for some in self._all([dict(counts)]):
            total.update(some)
        self._metrics |= {
            "equal_share": total["equal"] / max(1, total["groups"]),
            "failed_answers": total["failed"],
        }
        if total["rewarded"]:
            self._metrics["reward_sampled"] = total["reward"] / total["rewarded"]
        if not (of_all := self._all(facts)):
            return
        rewards, terms, sources, cut, lengths, stale, ages, versions = zip(*of_all, strict=True)
        by_source: dict[str, list[float]] = {}
        for source, reward in zip(sources, rewards, strict=True):
            if reward is not None:
                by_source.setdefault(source, []).append(reward)
        names = dict.fromkeys(name for one in terms for name in one)
        self._metrics |= {
            "reward": float(np.mean([one for one in rewards if one is not None])),
            "reward_by_source": {source: float(np.mean(some)) for source, some in sorted(by_source.items())},
            "reward_terms": {name: float(np.mean([one[name] for one in terms if name in one])) for name in names},
            "answers_cut_share": float(np.mean(cut)),
            "answer_tokens": float(np.mean(lengths)),
            "stale_share": float(np.mean(stale)),
            "age_mean": float(np.mean(ages)),
            "age_max": max(ages),
            "versions_mean": float(np.mean(versions)),
        }

    def _is_stale(self, one: Answer) -> bool:
        return bool(len(one.versions_N)) and int(one.versions_N[0]) < self._num_steps

    @property
    def _num_steps(self) -> int:
        """Steps that were given so far: how often the weights have been updated when the next one is asked for."""
        return self._position.samples.get(self._phase_config.name, 0) // self._phase_config.batch_size

    # Answers and ranks.

    @property
    def _speaks(self) -> bool:
        """Whether this rank gives what it has sampled: the ranks of its tp and pp group have the same."""
        return self.sampler.runner.is_first

    def _all(self, mine: Sequence[T]) -> list[T]:
        """Of all ranks, once each. Collective."""
        return [one for part in gathered(list(mine) if self._speaks else []) for one in part]

    def _mine(self, answers: Iterable[Answer]) -> list[Answer]:
        """Those of the data rank's answers that this rank samples on with: cp ranks share them by group."""
        cp = self.world.axis_size("cp")
        return [one for one in answers if one.prompt % cp == self.world.axis_rank("cp")]

    def _send(self, mine: Sequence[Answer], *, by_group: bool = False) -> list[Answer]:
        """Deal answers, of each rank those that were sampled on it, to data ranks of about as many tokens; `by_group`
        those of a group to the same one."""

        def name(one: Answer) -> tuple[int, ...]:
            return (one.prompt,) if by_group else one.key

        sizes = Counter[tuple[int, ...]]()
        for key, size in self._all([(name(one), one.num_tokens) for one in mine]):
            sizes[key] += size
        names = sorted(sizes)
        dealt = deal([sizes[key] for key in names], self.world.layout.data_ranks)
        share_of = dict(zip(names, dealt, strict=True))
        return send(mine if self._speaks else [], self.world, lambda one: share_of[name(one)])

    def _deal_again(self) -> None:
        """After a resume, perhaps on another number of ranks."""
        number = max(gathered(len(self._steps)))
        self._steps += [[] for _ in range(number - len(self._steps))]
        self._steps = [self._send(self._mine(some)) for some in self._steps]
        self._waiting = self._send(self._mine(self._waiting), by_group=True)
        self._unfinished = self._send(self._mine(self._unfinished), by_group=True)
        self._must_deal = False


def _split(answers: Sequence[Answer]) -> tuple[list[Answer], list[Answer]]:
    """Finished and unfinished ones."""
    return [one for one in answers if one.finished], [one for one in answers if not one.finished]


def _joined(files: Sequence[Mapping[str, bytes]], name: str) -> list[Answer]:
    return [one for some in files if name in some for one in from_bytes(some[name])]


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    seconds[name] = time.perf_counter() - started
