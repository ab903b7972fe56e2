"""`glmforge chat` in a terminal, a real one, and from a pipe."""

import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from glmforge.cli.app import app
from glmforge.recipes.train import train
from helpers.command import LIMIT_S
from helpers.tiny_data import TinyData

PROGRAM = """
import fcntl, json, signal, sys, termios, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background ignores it, and its children do
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from glmforge.deploy.chat import Conversation
from glmforge.generate.engine import Engine

reply, generate, said = Conversation.reply, Engine.generate, sys.argv.pop(1)

def noted(self, text, *arguments):
    answer = reply(self, text, *arguments)
    print(json.dumps([text, len(self.messages)]), file=open(said, "a"))
    return answer

def held(self, prompts, params, *, on_update, stopped):
    def show(update):
        on_update(update)
        shown.append(update)
        if len(shown) == 5:
            print("waits", flush=True)
        while len(shown) == 5 and not stopped():
            time.sleep(0.001)
    shown = []
    return generate(self, prompts, params, on_update=show, stopped=stopped)

Conversation.reply, Engine.generate = noted, held
from glmforge.cli.app import main
main()
"""
"""Keeps the messages in a file, and each answer at its fifth token until it is to end."""


@pytest.fixture(scope="module")
def run(tiny_data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("chat") / "run"
    train(tiny_data.run_config(directory, phases=[{"name": "main", "steps": 2, "seq_len": 32, "batch_size": 2}]))
    return directory


class Terminal:
    """A terminal with a program in it."""

    def __init__(self, *command: object) -> None:
        self.end, inside = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
        self.process = subprocess.Popen(
            list(map(str, command)), stdin=inside, stdout=inside, stderr=inside, start_new_session=True, env=environment
        )
        os.close(inside)
        os.set_blocking(self.end, False)
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self.end, text.encode())

    def read_until(self, text: str) -> str:
        """What is shown up to `text`, which has not been looked at yet."""
        deadline = time.monotonic() + LIMIT_S
        while text not in self.shown:
            assert time.monotonic() < deadline, self.shown
            try:
                self.shown += os.read(self.end, 4096).decode(errors="replace")
            except BlockingIOError:
                time.sleep(0.01)  # looks at what another process writes; the outcome does not depend on it
            except OSError:
                raise AssertionError(f"it ended: {self.shown}") from None
        before, _, self.shown = self.shown.partition(text)
        return before


@pytest.fixture
def terminal(run: Path, tmp_path: Path) -> Iterator[Terminal]:
    (tmp_path / "program.py").write_text(PROGRAM)
    options = ["--max-new-tokens", 40, "--seed", 1, "--temperature", 1]
    terminal = Terminal(sys.executable, tmp_path / "program.py", tmp_path / "said", "chat", run, *options)
    yield terminal
    terminal.process.kill()
    terminal.process.wait()
    os.close(terminal.end)


def test_in_a_terminal(terminal: Terminal, tmp_path: Path) -> None:
    terminal.read_until("/help lists the commands")
    terminal.read_until("> ")
    terminal.type("/help\r")
    terminal.read_until("ends the answer")
    terminal.read_until("> ")
    terminal.type("/halp\r")
    terminal.read_until("unknown command '/halp'")
    terminal.read_until("> ")
    terminal.type("\x1b[200~first line\rsecond line\x1b[201~\r")
    terminal.read_until("waits")
    terminal.type("\x03")
    terminal.read_until("> ")
    terminal.type("very long " * 60 + "\r")
    terminal.read_until("shorten it")
    terminal.read_until("> ")
    terminal.type("third\r")
    terminal.read_until("waits")
    terminal.type("\x03")
    terminal.read_until("> ")
    terminal.type("\x03")
    assert terminal.process.wait(LIMIT_S) == 0
    said = [json.loads(line) for line in (tmp_path / "said").read_text().splitlines()]
    assert said == [["first line\nsecond line", 2], ["third", 4]]


def piped(run: Path, text: bytes, *options: object) -> Result:
    command = ["chat", run, "--max-new-tokens", 4, "--seed", 1, *options]
    return CliRunner().invoke(app, list(map(str, command)), input=text, env={"COLUMNS": "200", "TERM": "dumb"})


@pytest.mark.parametrize("end", ["exit", "quit", "/exit", "/quit", None])
def test_from_a_pipe_each_line_is_a_message(run: Path, end: str | None) -> None:
    one = piped(run, b"Hello\n", "--temperature", 0)
    lines = ["", "Hello", *([] if end is None else [end, "never said"])]
    result = piped(run, "\n".join(lines).encode(), "--temperature", 0)
    assert (result.exit_code, result.stdout) == (0, one.stdout)
    assert one.stdout.strip()


def test_what_is_no_text_ends_a_pipe(run: Path) -> None:
    result = piped(run, b"caf\xe9\nHello\n")
    assert result.exit_code == 1
    assert "not UTF-8 text" in str(result.exception)
