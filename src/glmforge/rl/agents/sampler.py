"""Conversations sampled with the weights that are trained, where they lie: `Sampler` for agents.

Each conversation runs in a thread: with an environment (`_with_environment`), or as a program that talks to an endpoint
(`endpoint.py`). Whoever needs a reply asks for it and waits; the caller's thread steps the engine for all of them
(`Turns`), so replies of many conversations are computed together. Of ranks that share requests the first one has the
conversations and tells the others what is asked for; those return no answers.

A seed is made of the run's seed, the prompt, the sample and the tokens before the reply. Which replies are computed
together depends on how fast environments are, so that sampling again may differ by rounding. Experts of a turn are
recorded when it is sampled; with `rollout.replay` the engine therefore computes what came before it again.

An environment or a program that fails says nothing about the policy: its sample has no reward and is not trained on.
"""

import json
import logging
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from queue import Empty, SimpleQueue
from tempfile import TemporaryFile
from typing import Any

from glmforge.config.rl import RolloutConfig
from glmforge.config.rl_agent import AgentConfig
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import GlmforgeError
from glmforge.generate.answer import Sample
from glmforge.generate.config import EngineConfig
from glmforge.generate.engine import Engine
from glmforge.generate.params import RequestError, SamplingParams
from glmforge.observe.alive import Alive, quiet
from glmforge.parallel.model import ParallelModel
from glmforge.rl.agents.conversation import Transcript, bridged, next_turn, opening
from glmforge.rl.agents.endpoint import RecordingEndpoint, Session
from glmforge.rl.agents.environment import Environment, environment_of
from glmforge.rl.exchange import gathered
from glmforge.rl.rollout import PAGE_SIZE, Asked, Sampler
from glmforge.rl.samples import Answer
from glmforge.runtime.waiting import result_of
from glmforge.verify.reply import MalformedReply, parse_reply

logger = logging.getLogger(__name__)

ENVIRONMENT = "environment"
"""The term of a reward that an environment or a program has given."""
_IDLE_S = 0.001
_MAX_OUTPUT = 1 << 16


class ProgramFailed(Exception):
    """An agent's program has ended with an error, or not in time."""


class Turns:
    """Replies of an engine, which one thread steps for many that wait."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._lock, self._is_closed = engine, threading.Lock(), False
        self._asked: SimpleQueue[tuple[tuple[int, ...], SamplingParams, Future[Sample]]] = SimpleQueue()
        self._open: dict[int, tuple[Sample, Future[Sample]]] = {}

    def ask(self, ids: Sequence[int], params: SamplingParams) -> Sample:
        """A reply, in any thread. Raises `RequestError` for what can never be served."""
        future: Future[Sample] = Future()
        with self._lock:
            if self._is_closed:
                raise GlmforgeError("the rollout has ended")
            self._asked.put((tuple(ids), params, future))
        return result_of(future)

    def serve(self, is_open: Callable[[], bool], alive: Alive) -> None:
        """Step until no rank has a conversation that is open. Collective."""
        try:
            while self._engine.runner.anyone(is_open()):
                alive("generation, agents' replies")
                for ids, params, future in self._new():
                    try:
                        self._open[self._engine.add(ids, params)] = Sample(), future
                    except RequestError as error:
                        future.set_exception(error)
                for update in self._engine.step():
                    sample, future = self._open[update.request]
                    sample.add(update)
                    if update.finished is not None:
                        del self._open[update.request]
                        future.set_result(sample)
        finally:
            self._close()

    def _new(self) -> list[tuple[tuple[int, ...], SamplingParams, Future[Sample]]]:
        new = []
        with suppress(Empty):
            new.append(self._asked.get(timeout=_IDLE_S if self._engine.is_idle else 0))
            while True:
                new.append(self._asked.get_nowait())
        runner: Any = self._engine.runner
        if not runner.shares_requests:
            return new
        told = [(ids, params) for ids, params, _ in new]
        parts = gathered((runner.share, runner.is_first, told))
        if runner.is_first:
            return new
        told = next(part for share, is_first, part in parts if is_first and share == runner.share)
        return [(ids, params, Future()) for ids, params in told]

    def _close(self) -> None:
        with self._lock:
            self._is_closed = True
        waiting = [future for _, future in self._open.values()]
        with suppress(Empty):
            while True:
                waiting.append(self._asked.get_nowait()[2])
        for future in waiting:
            future.set_exception(GlmforgeError("the rollout has ended"))


class AgentSampler(Sampler):
    """Samples conversations; all ranks call it together.

    Args:
        record_of: the record of the prompt with a number; see `prompts.Prompt.record`.
        seq_len: tokens that a conversation, or a part of it, may have.
    """

    def __init__(
        self,
        config: RolloutConfig,
        agent: AgentConfig,
        model: ParallelModel,
        *,
        tokenizer: Tokenizer,
        record_of: Callable[[int], Mapping[str, Any]],
        seq_len: int,
        stop_ids: Sequence[int],
        seed: int,
    ) -> None:
        super().__init__(config, model, stop_ids=stop_ids, vocab_size=tokenizer.vocab_size, seed=seed)
        self.agent, self.tokenizer, self.seq_len = agent, tokenizer, seq_len
        self._record_of = record_of
        self._environment = environment_of(agent) if agent.program is None else None

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
            num_pages = at_once * (self.seq_len // PAGE_SIZE + 2) + 1
            size = min(self.config.cache_bytes, num_pages * self.runner.page_bytes(PAGE_SIZE))
            engine = Engine(self.runner, EngineConfig(size, PAGE_SIZE, max_sequences=at_once), tokenizer=self.tokenizer)
            turns = Turns(engine)
            has_endpoint = self.agent.program is not None and bool(mine)
            endpoint = RecordingEndpoint(self.tokenizer, turns.ask, self.seq_len) if has_endpoint else None
            with endpoint or nullcontext(), ThreadPoolExecutor(at_once, "agent") as pool:
                futures = [
                    pool.submit(self._episode, one, sample, version, turns, endpoint)
                    for one in mine
                    for sample in range(self.config.group_size)
                ]
                try:
                    turns.serve(lambda: not all(future.done() for future in futures), alive)
                finally:
                    pool.shutdown(cancel_futures=True)
            self._refuse_differing_weights()
        answers = [one for future in futures for one in future.result()]
        return [one if one.experts is None else one.changed(experts=one.experts.astype(self._dtype)) for one in answers]

    def _episode(
        self, asked: Asked, sample: int, version: int, turns: Turns, endpoint: RecordingEndpoint | None
    ) -> list[Answer]:
        """The answers of one sample: one, or as many as the program began prompts anew."""
        record = self._record_of(asked.number)
        try:
            if endpoint is None:
                return [self._with_environment(asked.number, sample, version, turns, record)]
            return self._with_program(asked.number, sample, version, endpoint, record)
        except (GlmforgeError, RequestError):
            raise
        except Exception as error:  # noqa: BLE001 - an environment's own code: its sample is not trained on
            words = f"{ENVIRONMENT}: {type(error).__name__}: {error}".replace("\n", " ")[:300]
            logger.warning("prompt %d, sample %d has failed: %s", asked.number, sample, words)
            transcript = Transcript(asked.ids)
            return [transcript.answer(asked.number, sample, version).changed(failed=words)]

    def _with_environment(
        self, number: int, sample: int, version: int, turns: Turns, record: Mapping[str, Any]
    ) -> Answer:
        assert self._environment is not None, "there is no program"
        environment: Environment = self._environment()
        thinking = bool(record.get("thinking", self.config.thinking))
        ids = opening(self.tokenizer, environment.reset(record), environment.tools, thinking=thinking)
        if len(ids) + self.config.max_new_tokens > self.seq_len:
            raise GlmforgeError(
                f"prompt {number}: opens with {len(ids):,} tokens, which with rl.rollout.max_new_tokens = "
                f"{self.config.max_new_tokens:,} are more than {self.seq_len:,}; raise phases.0.seq_len"
            )
        transcript, reward, is_cut = Transcript(ids), None, False
        for turn in range(1, self.agent.max_turns + 1):
            params = self._params(self._seed(number, sample, transcript.num_new), 1, transcript.num_new)
            reply = turns.ask(transcript.ids, params)
            transcript.reply(reply)
            if reply.finished != "stop":
                reward = 0.0
                break
            try:
                outcome = environment.step(parse_reply(self.tokenizer.decode(reply.tokens[:-1])))
            except MalformedReply:
                reward = 0.0
                break
            if not outcome.messages:
                reward = outcome.reward
                break
            ids = bridged(transcript.ids, next_turn(self.tokenizer, outcome.messages, thinking=thinking))
            if turn == self.agent.max_turns or transcript.num_new + len(ids) >= self.config.max_new_tokens:
                reward, is_cut = 0.0, True
                break
            transcript.observe(ids)
        return _rewarded(transcript.answer(number, sample, version, is_cut=is_cut), reward)

    def _with_program(
        self, number: int, sample: int, version: int, endpoint: RecordingEndpoint, record: Mapping[str, Any]
    ) -> list[Answer]:
        def params_of(num_known: int) -> SamplingParams:
            return self._params(self._seed(number, sample, num_known), 1)

        with endpoint.session(params_of, self.agent.max_turns) as session:
            reward = self._run(endpoint, session, record)
        if not session.transcripts:
            raise ProgramFailed("it has made no request that was answered")
        reward = 0.0 if session.is_malformed else reward
        group_size = self.config.group_size
        parts = [
            one.answer(number, sample + place * group_size, version) for place, one in enumerate(session.transcripts)
        ]
        return [_rewarded(one.changed(episode=sample if place else None), reward) for place, one in enumerate(parts)]

    def _run(self, endpoint: RecordingEndpoint, session: Session, record: Mapping[str, Any]) -> float | None:
        """Run the program to its end; the reward, if the last line that it prints is a JSON object with one."""
        assert self.agent.program is not None, "there is one"
        with TemporaryFile() as output, TemporaryFile() as given:
            given.write(json.dumps(dict(record)).encode())
            given.seek(0)
            with subprocess.Popen(
                self.agent.program,
                stdin=given,
                stdout=output,
                env=os.environ | endpoint.variables(session),
                start_new_session=True,
            ) as process:
                try:
                    status = process.wait(self.agent.timeout_s)
                except subprocess.TimeoutExpired:
                    raise ProgramFailed(f"took longer than {self.agent.timeout_s:g} s") from None
                finally:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
            if status:
                raise ProgramFailed(f"ended with status {status}")
            written = os.pread(output.fileno(), _MAX_OUTPUT, max(0, os.fstat(output.fileno()).st_size - _MAX_OUTPUT))
        return _reward_in(written.decode(errors="replace"))


def _reward_in(output: str) -> float | None:
    last = (output.strip().splitlines() or [""])[-1]
    with suppress(ValueError, RecursionError):
        said = json.loads(last)
        if isinstance(said, dict) and isinstance(reward := said.get("reward"), int | float):
            return float(reward)
    return None


def _rewarded(answer: Answer, reward: float | None) -> Answer:
    return answer if reward is None else answer.changed(reward=reward, terms={ENVIRONMENT: reward})
