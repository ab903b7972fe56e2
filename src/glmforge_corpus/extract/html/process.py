"""Pages read in a process of their own, so that a page can cost no more than a page.

The parser is C code. Some pages make it work for minutes (a tag of 300,000 attributes), or fill the memory (formatting
elements that are opened again in each of 20,000 paragraphs), or overrun its stack (100,000 nested templates): nothing
in the same process could interrupt it, and the last would end the worker and with it the shard. So a worker has a
helper, this module run as a program, to which it sends one page after the other. The kernel ends the helper when a
page has taken its seconds of CPU time (a timer with an unhandled signal, so that the load of the machine does not
count) or asks for too much memory; the page is given up, by name, and the next one gets a new helper.

A helper is started once and serves all tasks of its worker.
"""

import atexit
import contextlib
import os
import resource
import signal
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Final

from resiliparse.parse.html.exception import HTMLParserException

from glmforge_corpus.extract.html.page import Page, read_page

PAGE_MEMORY: Final = 4 << 30
"""Bytes of address space that a helper may ask for beyond what it has before its first page."""

_REQUEST, _ANSWER = struct.Struct("<QHd?"), struct.Struct("<BQII")
_READY, _READ, _NO_MEMORY = range(3)
_WARM_UP = b"<p>Compiled loops are loaded, or made, before the first page is timed.</p>" * 9


class UnreadablePageError(Exception):
    """A page that could not be read within its limits. The message says which."""


class PageProcess:
    """Reads pages in a helper process, which is started for the first of them and again after a fatal one."""

    def __init__(self, memory: int = PAGE_MEMORY) -> None:
        self._memory = memory
        self._helper: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def read(self, data: bytes, charset: str | None, seconds: float, *, recall_first: bool = False) -> Page:
        """As `read_page`.

        Raises:
            UnreadablePageError: more than `seconds` of CPU time or the memory, or a crash of the parser.
        """
        with self._lock:
            helper = self._helper or self._start()
            name = (charset or "").encode()[:1000]
            assert helper.stdin is not None
            assert helper.stdout is not None
            try:
                helper.stdin.write(_REQUEST.pack(len(data), len(name), seconds, recall_first) + name)
                helper.stdin.write(data)
                helper.stdin.flush()
                kind, parts = _receive(helper.stdout)
            except (BrokenPipeError, EOFError):
                raise UnreadablePageError(_cause_of_death(self._end(), seconds)) from None
        if kind == _NO_MEMORY:
            raise UnreadablePageError(f"needs more than {self._memory:,} bytes of memory")
        text, title, language = parts
        return Page(text, title.decode(), language.decode() or None)

    def close(self) -> None:
        """End the helper; the next page starts another."""
        with self._lock:
            if self._helper is not None:
                self._end()

    def _start(self) -> subprocess.Popen[bytes]:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)}
        command = [sys.executable, "-m", __name__, str(self._memory)]
        helper = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        self._helper = helper
        assert helper.stdout is not None
        try:
            _receive(helper.stdout)
        except EOFError:
            raise RuntimeError(f"the page parser process did not start: exit status {self._end()}") from None
        return helper

    def _end(self) -> int:
        helper, self._helper = self._helper, None
        assert helper is not None
        assert helper.stdin is not None
        assert helper.stdout is not None
        helper.stdout.close()
        with contextlib.suppress(BrokenPipeError):  # what was not yet sent of the page that ended it
            helper.stdin.close()
        return helper.wait()


_processes: dict[int, PageProcess] = {}


def page_process() -> PageProcess:
    """The one of this process; a fork has its own."""
    if os.getpid() not in _processes:
        process = _processes[os.getpid()] = PageProcess()
        atexit.register(process.close)
    return _processes[os.getpid()]


def _cause_of_death(status: int, seconds: float) -> str:
    if status == -signal.SIGPROF:
        return f"took more than {seconds:g} s of CPU time"
    if status >= 0:  # no page ends Python: a bug in glmforge, shown by the traceback it printed
        raise RuntimeError(f"the page parser process failed with exit status {status}")
    return f"killed the parser with {signal.Signals(-status).name}"


def _receive(stream: IO[bytes]) -> tuple[int, list[bytes]]:
    kind, *sizes = _ANSWER.unpack(_exactly(stream, _ANSWER.size))
    return kind, [_exactly(stream, size) for size in sizes]


def _exactly(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data


def _send(stream: IO[bytes], kind: int, text: bytes = b"", title: bytes = b"", language: bytes = b"") -> None:
    stream.write(_ANSWER.pack(kind, len(text), len(title), len(language)))
    stream.write(text)
    stream.write(title + language)
    stream.flush()


def _limit_memory(more: int) -> None:
    if sys.platform == "linux":  # elsewhere the limit is not enforced
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        wanted = used + more
        resource.setrlimit(resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def _serve(memory: int) -> None:
    """Answer requests until the worker goes away. Nothing but answers may reach the pipe: `print` goes to stderr."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the worker's to answer
    for recall_first in (False, True):
        read_page(_WARM_UP, recall_first=recall_first)
    _limit_memory(memory)
    _send(answers, _READY)
    while header := requests.read(_REQUEST.size):
        size, name_size, seconds, recall_first = _REQUEST.unpack(header)
        charset = _exactly(requests, name_size).decode() or None
        data = _exactly(requests, size)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            page = read_page(data, charset, recall_first=recall_first)
        except (MemoryError, HTMLParserException):  # lexbor fails for lack of memory only
            signal.setitimer(signal.ITIMER_PROF, 0)
            _send(answers, _NO_MEMORY)
        else:
            signal.setitimer(signal.ITIMER_PROF, 0)
            _send(answers, _READ, page.text, page.title.encode("utf-8", "replace"), (page.language or "").encode())


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
