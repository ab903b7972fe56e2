"""Answers that follow a JSON schema or a grammar, by the library llguidance (the extra `grammar`).

A request's grammar is followed in a process of its own (`grammar_process.py`), so that no grammar stops the engine. The
engine asks it what may come next when it has chosen a token, and goes on with other requests where the answer takes
longer than a step. A byte-level vocabulary can spell anything a grammar requires next; what it cannot spell, such as a
control token that is ruled out, ends the request.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.extras import needed_for
from glmforge.generate.grammar_process import Limits
from glmforge.generate.params import RequestError, SamplingParams

MAX_OPEN = 64
"""Requests that wait for their turn and have a process; others get one when they begin."""
LIMITS = Limits()
_MAX_WAIT_S = 60.0
"""For an answer of a process that takes no processor time either."""
_SHOWN = 300  # characters of the library's own words


class Expected(NamedTuple):
    """What a grammar expects at one place: whether the text may end there, whether it has to, and a bit per token."""

    accepts: bool
    is_end: bool
    bits: bytes


class Grammars:
    """The grammars of requests, over the vocabulary of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._server: _Server | None = None
        self._open: weakref.WeakSet[RequestGrammar] = weakref.WeakSet()

    def compile(self, params: SamplingParams) -> "RequestGrammar":
        """Of the grammar or schema in `params`, in any thread. Waits for it; raises `RequestError` if it cannot be read
        or takes too much."""
        with needed_for("a grammar"):
            import llguidance  # noqa: F401 - what the process needs
        grammar = RequestGrammar(self, params)
        grammar.compile()
        with self._lock:
            if sum(one.is_open for one in self._open) >= MAX_OPEN:
                grammar.close()
            else:
                self._open.add(grammar)
        return grammar

    def connect(self) -> Connection:
        """To a new process."""
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            try:
                if self._server is None:
                    raise BrokenPipeError
                self._server.send(theirs)
            except OSError:  # it has not started, or has been killed
                self._server = _Server(self._tokenizer)
                self._server.send(theirs)
        return Connection(ours.detach())


class RequestGrammar:
    """What the samples of one request have to follow.

    Attributes:
        error: why it cannot be followed any more, in one line.
    """

    def __init__(self, grammars: Grammars, params: SamplingParams) -> None:
        self.name, source = _source(params)
        self.error: str | None = None
        self.stop_ids = list(params.stop_ids)
        self._grammars = grammars
        self._order = json.dumps({"kind": self.name, "source": source}).encode()
        self._connection: Connection | None = None
        self._compiling = False
        self._asked: dict[int, SampleGrammar] = {}
        self._asked_at = 0.0
        self._first: list[Expected] = []

    @property
    def is_open(self) -> bool:
        """Whether it has a process."""
        return self._connection is not None

    @property
    def is_asked(self) -> bool:
        """Whether an answer is to come."""
        return bool(self._asked or self._compiling) and self.error is None

    def sample(self) -> "SampleGrammar":
        """For an answer that begins."""
        return SampleGrammar(self, self._first)

    def compile(self) -> None:
        """Wait until it is compiled. Raises `RequestError`."""
        self._begin()
        while self.is_asked:
            wait_for([self], _MAX_WAIT_S)
        if self.error is not None:
            raise RequestError(self.error)

    def ask(self, number: int, sample: "SampleGrammar", read: Sequence[int], drafts: Sequence[int]) -> None:
        """Have sample `number` read these tokens; what follows them, and the drafts, is heard later."""
        if self._connection is None:
            self._begin()
        self._asked[number], self._asked_at = sample, time.monotonic()
        self._send(json.dumps((number, list(read), list(drafts))).encode())

    def hear(self) -> None:
        """Take the answers that have come."""
        assert self._connection is not None, "it has been asked"
        try:
            while self.error is None and self._connection.poll():
                self._take(self._connection.recv_bytes())
        except (EOFError, OSError):
            self._fail("its process has ended")

    def check_time(self) -> None:
        """Fail where an answer has not come for too long."""
        if time.monotonic() - self._asked_at >= _MAX_WAIT_S:
            self._fail(f"no answer for {_MAX_WAIT_S:.0f} s")

    def close(self) -> None:
        """Let the process go; it ends by itself."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._asked.clear()

    def fileno(self) -> int:
        assert self._connection is not None, "it has been asked"
        return self._connection.fileno()

    def _begin(self) -> None:
        self._connection, self._compiling, self._asked_at = self._grammars.connect(), True, time.monotonic()
        self._send(self._order)

    def _send(self, message: bytes) -> None:
        assert self._connection is not None, "it has begun"
        with suppress(OSError):  # what has ended it is to be heard
            self._connection.send_bytes(message)

    def _take(self, message: bytes) -> None:
        head, _, bits = message.partition(b"\n")
        answer = json.loads(head)
        if "signal" in answer:
            self._fail(self._ended_by(answer["signal"]))
        elif "error" in answer:
            self._fail(answer["error"])
        else:
            size = len(bits) // len(answer["places"])
            found = [
                Expected(accepts, is_end, bits[number * size : (number + 1) * size])
                for number, (accepts, is_end) in enumerate(answer["places"])
            ]
            if self._compiling:
                self._compiling, self._first = False, found
            else:
                self._asked.pop(answer["sample"]).expected = found

    def _ended_by(self, number: int) -> str:
        if number == signal.SIGPROF:
            if self._compiling:
                return f"compiling takes more than {LIMITS.compile_seconds:g} s of processor time; make it simpler"
            return f"a token takes more than {LIMITS.token_seconds:g} s of processor time; make it less ambiguous"
        if number == signal.SIGABRT:
            return f"takes more than {LIMITS.memory / 2**30:g} GiB of memory; make it simpler"
        if number in (signal.SIGSEGV, signal.SIGBUS):
            return "is nested too deeply; make it flatter"
        return f"its process was killed by {signal.Signals(number).name}"

    def _fail(self, words: str) -> None:
        words = " ".join(words.split())
        self.error = f"{self.name}: {words if len(words) <= _SHOWN else words[:_SHOWN] + '...'}"
        self.close()


class SampleGrammar:
    """Where one answer is in its request's grammar.

    Attributes:
        expected: next, and behind each of the drafts as far as they are of the grammar; None while it is asked.
    """

    def __init__(self, request: RequestGrammar, first: list[Expected]) -> None:
        self.request = request
        self.expected: list[Expected] | None = first
        self._num_read = 0

    @property
    def is_known(self) -> bool:
        """Whether it is known what may come next."""
        return self.expected is not None

    def ask(self, sample: int, answer: Sequence[int], drafts: Sequence[int]) -> None:
        """Ask what may follow `answer` and the drafts, if it is longer than before; it is heard later."""
        if len(answer) > self._num_read:
            self.expected = None
            self.request.ask(sample, self, answer[self._num_read :], drafts)
            self._num_read = len(answer)

    def ends(self, num_drafted: int = 0) -> bool:
        """Whether nothing may follow what was read and this many of the drafts."""
        assert self.expected is not None, "it is known"
        return self.expected[num_drafted].is_end

    def goes_on(self, num_drafted: int) -> bool:
        """Whether it is known what may follow this many of the drafts, and anything may."""
        assert self.expected is not None, "it is known"
        return num_drafted < len(self.expected) and not self.ends(num_drafted)

    def allowed(self, vocab_size: int, num_drafted: int = 0) -> Tensor:
        """bool [vocab_size]: what may follow what was read and this many of the drafts."""
        assert self.expected is not None, "it is known"
        place = self.expected[num_drafted]
        allowed = torch.zeros(vocab_size, dtype=torch.bool)
        known = np.unpackbits(np.frombuffer(place.bits, np.uint8), bitorder="little")[:vocab_size]
        allowed[: len(known)] = torch.from_numpy(known).bool()
        allowed[self.request.stop_ids] = place.accepts
        return allowed


def wait_for(grammars: Iterable[RequestGrammar], seconds: float) -> None:
    """Hear what comes within this many seconds, until all have answered."""
    deadline = time.monotonic() + seconds
    asked = {one.fileno(): one for one in grammars if one.is_asked}
    while asked and (ready := wait(list(asked), max(0.0, deadline - time.monotonic()))):
        for number in ready:
            assert isinstance(number, int), "it was given as one"
            asked[number].hear()
            if not asked[number].is_asked:
                del asked[number]
    for one in asked.values():
        one.check_time()


class _Server:
    """The process that forks those of the grammars; it ends with this object."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "glmforge.generate.grammar_process", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        weakref.finalize(self, _end, self.process, self._control)
        given = {"tokenizer": tokenizer.to_json(), "end_of_text": tokenizer.end_of_text_id, "limits": LIMITS}
        stdin = self.process.stdin
        assert stdin is not None, "a pipe"
        with suppress(BrokenPipeError), stdin:  # the first to ask hears that it has ended
            stdin.write(json.dumps(given).encode())

    def send(self, theirs: socket.socket) -> None:
        """One end of a connection, for a new process."""
        socket.send_fds(self._control, [b"."], [theirs.fileno()])


def _end(process: "subprocess.Popen[bytes]", control: socket.socket) -> None:
    control.close()
    process.kill()
    process.wait()


def _source(params: SamplingParams) -> tuple[str, str]:
    if params.grammar is not None:
        return "grammar", params.grammar
    schema = params.json_schema
    try:
        return "json_schema", schema if isinstance(schema, str) else json.dumps(schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"json_schema: {' '.join(str(error).split())}") from None
