"""The processes that follow grammars: `python -m glmforge.generate.grammar_process`.

llguidance bounds most of what it does, but not all: some grammars of twenty bytes keep it busy for ever, some overflow
its stack, and no signal handler of Python's gets a turn meanwhile. So a request's grammar is followed in a process of
its own. The kernel ends it where a call takes too much processor time or memory, and a crash ends no other process. A
thread could not be ended, and llguidance holds Python's lock while it reads a token.

A server reads the vocabulary once and forks a process for each request, in a millisecond or two. It is sent one end of
a connection for it, and says on that what has ended the process. On the connection an order comes first, then
questions; each is answered. The engine's end is `grammar.py`.
"""

import json
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from llguidance._lib import JsonCompileOptions


class Limits(NamedTuple):
    """What the kernel holds a process to.

    Attributes:
        compile_seconds: of processor time, to compile a grammar and to find the first tokens.
        token_seconds: of processor time, to find what may follow a token.
        memory: bytes that it may take, with the vocabulary.
    """

    compile_seconds: float = 2.0
    token_seconds: float = 1.0
    memory: int = 2**30


_MAX_STATES = 50_000  # of the lexer, at 1 to 2 kB; llguidance's default is five times this
_JSON: "JsonCompileOptions" = {"whitespace_pattern": "\\n?[ ]{0,32}"}
"""Spaces and line breaks as people write them: a model that is unsure would go on with them for ever."""


def main() -> None:
    """Serve the connections that come over the socket whose number is the argument, until it is closed."""
    from llguidance import LLTokenizer

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the engine's
    given = json.load(sys.stdin)
    limits = Limits(*given["limits"])
    resource.setrlimit(resource.RLIMIT_DATA, (limits.memory, limits.memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    vocabulary = LLTokenizer(given["tokenizer"], eos_token=given["end_of_text"])
    _serve(socket.socket(fileno=int(sys.argv[1])), vocabulary, limits)


def _serve(control: socket.socket, vocabulary: "LLTokenizer", limits: Limits) -> None:
    woken, wake = socket.socketpair()
    wake.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno())
    children: dict[int, Connection] = {}
    while True:
        readable = select.select([control, woken], [], [])[0]
        if woken in readable:
            woken.recv(4096)
            _report_exits(children)
        if control in readable:
            _, handles, _, _ = socket.recv_fds(control, 1, 1)
            if not handles:
                return
            connection = Connection(handles[0])
            if (process := os.fork()) == 0:
                signal.set_wakeup_fd(-1)
                for end in (control, woken, wake):
                    end.close()
                for other in children.values():
                    other.close()
                try:
                    os.nice(5)  # the model goes first
                    _follow(connection, vocabulary, limits)
                finally:
                    os._exit(0)
            children[process] = connection


def _report_exits(children: dict[int, Connection]) -> None:
    while children:
        process, status = os.waitpid(-1, os.WNOHANG)
        if process == 0:
            return
        with children.pop(process) as connection, suppress(OSError):
            if os.WIFSIGNALED(status):
                connection.send_bytes(json.dumps({"signal": os.WTERMSIG(status)}).encode())


def _follow(connection: Connection, vocabulary: "LLTokenizer", limits: Limits) -> None:
    """Answer an order, then questions, until the other end is closed."""
    with suppress(EOFError, OSError):
        try:
            order = json.loads(connection.recv_bytes())
            with _processor_time(limits.compile_seconds):
                first = _compile(vocabulary, **order)
                answer = _answer(first, 0, ())
            connection.send_bytes(answer)
            samples: dict[int, LLMatcher] = {}
            while True:
                sample, read, drafts = json.loads(connection.recv_bytes())
                with _processor_time(limits.token_seconds):
                    matcher = samples.get(sample) or samples.setdefault(sample, first.deep_copy())
                    matcher.consume_tokens(read)
                    answer = _answer(matcher, sample, drafts)
                connection.send_bytes(answer)
        except (EOFError, OSError):
            raise
        except BaseException as error:  # noqa: BLE001 - a panic of the library is not an Exception
            connection.send_bytes(json.dumps({"error": str(error)}).encode())


def _compile(vocabulary: "LLTokenizer", kind: str, source: Any) -> "LLMatcher":
    from llguidance import LLMatcher, LLParserLimits

    if kind == "json_schema":
        source = LLMatcher.grammar_from_json_schema(source, defaults=_JSON)
    limits = LLParserLimits(max_lexer_states=_MAX_STATES, verbose_errors=False)
    return LLMatcher(vocabulary, source, log_level=0, limits=limits)


def _answer(matcher: "LLMatcher", sample: int, drafts: Sequence[int]) -> bytes:
    """What may come next, and behind the drafts as far as they are of the grammar: for each of these places whether the
    text may end there and whether it has to, and a bit for every token."""
    places, masks, number = [], [], 0
    for draft in (*drafts, None):
        mask = matcher.compute_bitmask()
        if matcher.is_error():
            raise ValueError(_words_of(matcher))
        masks.append(mask)
        places.append((matcher.is_accepting(), matcher.is_stopped()))
        if draft is None or matcher.is_stopped() or not matcher.try_consume_tokens([draft]):
            break
        number += 1
    if number:
        matcher.rollback(number)
    return json.dumps({"sample": sample, "places": places}).encode() + b"\n" + b"".join(masks)


def _words_of(matcher: "LLMatcher") -> str:
    words = matcher.get_error().partition("<backtrace>")[0].replace("<non-verbose/>", "").rstrip()
    return "no text matches it" if words.startswith("NoExtension") else words


@contextmanager
def _processor_time(seconds: float) -> Iterator[None]:
    """The kernel ends this process where more is taken."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)


if __name__ == "__main__":
    main()
