"""Conversations sampled with the weights that are trained, where they lie: `Sampler` for agents.

Each conversation runs in a thread: with an environment, or as a program that talks to an endpoint (`endpoint.py`). Who
needs a reply waits for it; the caller's thread steps the engine for all of them (`Turns`). Of ranks that share requests
the first one has the conversations, and tells the others what is asked for; those return no answers.

A seed is made of the run's seed, the prompt, the sample and the tokens or requests before the reply. Which replies are
computed together depends on how fast environments are, so sampling again may differ by rounding.

An environment or a program that fails says nothing of the policy: its sample has no reward and is not trained on.
"""

import json
import logging
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from queue import Empty, SimpleQueue
from typing import Any

from glmforge.config.rl import RolloutConfig
from glmforge.config.rl_agent import AgentConfig
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import GlmforgeError
from glmforge.generate.answer import Sample
from glmforge.generate.config import EngineConfig
from glmforge.generate.engine import Engine
from glmforge.generate.params import RequestError, SamplingParams
from glmforge.generate.sharded import ShardedModel
from glmforge.observe.alive import Alive, quiet
from glmforge.parallel.model import ParallelModel
from glmforge.rl.agents.conversation import Transcript, bridged, next_turn, opening
from glmforge.rl.agents.endpoint import RecordingEndpoint
from glmforge.rl.agents.environment import Environment
from glmforge.rl.exchange import gathered
from glmforge.rl.rollout import PAGE_SIZE, Asked, Sampler
from glmforge.rl.samples import Answer
from glmforge.runtime.waiting import STEP_S
from glmforge.verify.reply import MalformedReply, parse_reply

logger = logging.getLogger(__name__)

ENVIRONMENT = "environment"
"""The term of a reward that an environment has given, or the endpoint for a malformed call."""
_IDLE_S = 0.001
_Waiting = tuple[tuple[int, ...], SamplingParams, Future[Sample]]


class Turns:
    """Replies of an engine, which one thread steps for many that wait."""

    def __init__(self, engine: Engine, runner: ShardedModel) -> None:
        self._engine, self._runner, self._is_over = engine, runner, False
        self._asked: SimpleQueue[_Waiting] = SimpleQueue()

    def ask(self, ids: Sequence[int], params: SamplingParams) -> Sample:
        """A reply, in any thread. Raises `RequestError` for what can never be served."""
        future: Future[Sample] = Future()
        self._asked.put((tuple(ids), params, future))
        while not self._is_over:
            with suppress(TimeoutError):
                return future.result(STEP_S)
        raise GlmforgeError("the rollout has ended")

    def serve(self, is_open: Callable[[], bool], alive: Alive) -> None:
        """Step until no rank has a conversation that is open. Collective."""
        waiting: dict[int, tuple[Sample, Future[Sample]]] = {}
        try:
            while self._runner.anyone(is_open()):
                alive("generation, agents' replies")
                for ids, params, future in self._new():
                    try:
                        waiting[self._engine.add(ids, params)] = Sample(), future
                    except RequestError as error:
                        future.set_exception(error)
                for update in self._engine.step():
                    sample, future = waiting[update.request]
                    sample.add(update)
                    if update.finished is not None:
                        future.set_result(sample)
        finally:
            self._is_over = True

    def _new(self) -> list[_Waiting]:
        new: list[_Waiting] = []
        with suppress(Empty):
            new.append(self._asked.get(timeout=_IDLE_S if self._engine.is_idle else 0))
            while True:
                new.append(self._asked.get_nowait())
        if not self._runner.shares_requests:
            return new
        parts = gathered((self._runner.share, [one[:2] for one in new]))  # only first ranks have any
        shared = [one for share, some in parts if share == self._runner.share for one in some]
        return new if self._runner.is_first else [(*one, Future()) for one in shared]


class AgentSampler(Sampler):
    """Samples conversations; all ranks call it together.

    Args:
        record_of: the record of the prompt with a number; see `prompts.Prompt.record`.
        seq_len: tokens that a conversation, or a part of it, may have.
        environment: makes one; None where there is a program.
        other: as `Sampler`.
    """

    def __init__(
        self,
        config: RolloutConfig,
        agent: AgentConfig,
        model: ParallelModel,
        tokenizer: Tokenizer,
        record_of: Callable[[int], Mapping[str, Any]],
        seq_len: int,
        environment: Callable[[], Environment] | None,
        **other: Any,
    ) -> None:
        super().__init__(config, model, vocab_size=tokenizer.vocab_size, **other)
        self.agent, self.tokenizer, self.seq_len, self._record_of = agent, tokenizer, seq_len, record_of
        self._environment = environment

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
        assert not unfinished, "the configuration refuses partial rollouts"
        mine = asked[self.runner.share :: self.runner.num_shares] if self.runner.is_first else []
        at_once = self.config.max_sequences
        with self.runner.session():
            most_pages = at_once * (self.seq_len // PAGE_SIZE + 2) + 1
            size = min(self.config.cache_bytes, most_pages * self.runner.page_bytes(PAGE_SIZE))
            engine_config = EngineConfig(size, PAGE_SIZE, max_sequences=at_once)
            turns = Turns(Engine(self.runner, engine_config, tokenizer=self.tokenizer), self.runner)
            endpoint = RecordingEndpoint(self.tokenizer, turns.ask, self.seq_len) if self.agent.program else None
            with endpoint or nullcontext(), ThreadPoolExecutor(at_once, "agent") as pool:
                episodes = [(one, sample) for one in mine for sample in range(self.config.group_size)]
                futures = [pool.submit(self._episode, *one, version, turns, endpoint) for one in episodes]
                try:
                    turns.serve(lambda: not all(future.done() for future in futures), alive)
                finally:
                    pool.shutdown(cancel_futures=True)
            self._refuse_differing_weights()
        return [one for future in futures for one in future.result()]

    def _episode(
        self, asked: Asked, sample: int, version: int, turns: Turns, endpoint: RecordingEndpoint | None
    ) -> list[Answer]:
        """The answers of one sample: one, or as many as the program began prompts."""
        number, record = asked.number, self._record_of(asked.number)
        try:
            if endpoint is None:
                transcripts, reward = self._with_environment(number, sample, turns, record)
            else:
                transcripts, reward = self._with_program(number, sample, endpoint, record)
        except GlmforgeError:
            raise
        except Exception as error:  # noqa: BLE001 - of an environment's own code: its sample is not trained on
            words = f"{ENVIRONMENT}: {type(error).__name__}: {error}".replace("\n", " ")[:300]
            logger.warning("prompt %d, sample %d has failed: %s", number, sample, words)
            return [Transcript(asked.ids).answer(number, sample, version).changed(failed=words)]
        given = {} if reward is None else {"reward": reward, "terms": {ENVIRONMENT: reward}}
        places = range(sample, sample + len(transcripts) * self.config.group_size, self.config.group_size)
        parts = [one.answer(number, place, version) for place, one in zip(places, transcripts, strict=True)]
        return [one.changed(episode=None if one.sample == sample else sample, **given) for one in parts]

    def _with_environment(
        self, number: int, sample: int, turns: Turns, record: Mapping[str, Any]
    ) -> tuple[list[Transcript], float | None]:
        """A conversation and its reward; None: `rl.rewards` judge."""
        assert self._environment is not None, "there is no program"
        environment, thinking, longest = self._environment(), record["thinking"], self.config.max_new_tokens
        ids = opening(self.tokenizer, environment.reset(record), environment.tools, thinking=thinking)
        if len(ids) + longest > self.seq_len:
            problem = f"opens with {len(ids):,} tokens, too many beside rl.rollout.max_new_tokens = {longest:,}"
            raise GlmforgeError(f"prompt {number}: {problem}; raise phases.0.seq_len")
        transcript = Transcript(ids)
        for left in reversed(range(self.agent.max_turns)):
            known = transcript.num_new
            reply = turns.ask(transcript.ids, self._params(self._seed(number, sample, known), 1, known))
            transcript.reply(reply)
            if reply.finished != "stop":
                break
            try:
                outcome = environment.step(parse_reply(self.tokenizer.decode(reply.tokens[:-1])))
            except MalformedReply:
                return [transcript], 0.0
            if not outcome.messages:
                return [transcript], outcome.reward
            ids = bridged(transcript.ids, next_turn(self.tokenizer, outcome.messages, thinking=thinking))
            if not left or transcript.num_new + len(ids) >= longest:
                break
            transcript.observe(ids)
        transcript.is_cut = True
        return [transcript], 0.0

    def _with_program(
        self, number: int, sample: int, endpoint: RecordingEndpoint, record: Mapping[str, Any]
    ) -> tuple[list[Transcript], float | None]:
        """What a program's session has recorded, and 0 if a call in it was malformed."""
        with endpoint.session(
            lambda n: self._params(self._seed(number, sample, n), 1), self.agent.max_turns
        ) as session:
            subprocess.run(
                self.agent.program,
                input=json.dumps(dict(record)).encode(),
                stdout=subprocess.DEVNULL,
                env=os.environ | endpoint.variables(session),
                timeout=self.agent.timeout_s,
                check=True,
            )
        if not session.transcripts:
            raise RuntimeError("the program asked for no reply")
        return session.transcripts, 0.0 if session.is_malformed else None
