"""Programs on their way to a node: what arrives there, which Python runs it, and which answers are refused.

The node is this machine; `ssh` is a program of the test's own.
"""

import ast
import sys
from pathlib import Path

import pytest

from glmforge.errors import HostError
from glmforge.runtime.ssh import Ssh
from glmforge_ops.hosts import remote_program
from glmforge_ops.hosts.fanout import Answer, Fanout, Outcome
from glmforge_ops.hosts.on_node.wire import MARK
from glmforge_ops.hosts.remote_program import WIRE, RemoteProgram, read_answer, source_of
from glmforge_ops.setup.find import FACTS
from glmforge_ops.storage.clean import CLEAN

ECHO = f"""
import sys
from {WIRE} import begin, say
def main(program):
    say({{"order": begin(), "python": sys.executable, "has_site": "site" in sys.modules, "path": sys.path}})
"""
_SSH = '#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift 2\nexec sh -c "$*"\n'
"""In place of ssh: hands the script to a shell here."""


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch) -> RemoteProgram:
    """A program that tells what it was asked."""
    source_of = remote_program.source_of
    monkeypatch.setattr(remote_program, "source_of", lambda name: ECHO if name == "echo" else source_of(name))
    remote_program._bundle.cache_clear()
    return RemoteProgram((WIRE, "echo"))


@pytest.fixture
def fanout(tmp_path: Path) -> Fanout:
    return Fanout(Ssh((str(executable(tmp_path / "ssh", _SSH)),)))


def executable(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(0o755)
    return file


def ask(fanout: Fanout, program: RemoteProgram, order: dict[str, object], python: str = "python3") -> Answer:
    sent = program.sent(order)
    return fanout.run(["node1"], lambda host: program.script(host, python), 60, sent)["node1"]


@pytest.mark.parametrize("text", ["'\"$(touch x)`;\n\\", "\0\x01\x7f\u2028é𝄞", "x" * 300_000, MARK.decode()])
def test_an_order_arrives_as_it_is(echo: RemoteProgram, fanout: Fanout, text: str) -> None:
    assert read_answer(ask(fanout, echo, {"text": text, text: 1}))["order"] == {"text": text, text: 1}
    assert "x" * 100 not in echo.script("node1"), "the command line is the same whatever is asked"
    assert echo.sent({"text": text}).startswith(echo.sent())


def test_neither_site_packages_nor_the_directory_or_the_environment_are_searched(
    echo: RemoteProgram, fanout: Fanout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    told = read_answer(ask(fanout, echo, {}))
    assert not told["has_site"]
    assert not {"", str(tmp_path), *(path for path in told["path"] if path.endswith("-packages"))} & set(told["path"])


def test_a_python_that_is_named_is_the_one_that_runs(echo: RemoteProgram, fanout: Fanout, tmp_path: Path) -> None:
    own = tmp_path / "my python; exit 3"
    own.symlink_to(sys.executable)
    assert read_answer(ask(fanout, echo, {}, str(own)))["python"] == str(own)


def test_a_python_that_is_too_old_says_so(fanout: Fanout) -> None:
    answer = ask(fanout, RemoteProgram((WIRE,), oldest="99.0"), {})
    assert answer.reason == "Python 99.0 or newer is needed there"


@pytest.mark.parametrize("program", [CLEAN, FACTS], ids=lambda program: program.modules[-1])
def test_a_program_needs_its_oldest_python_and_what_came_before(program: RemoteProgram) -> None:
    version = tuple(map(int, program.oldest.split(".")))
    for number, name in enumerate(program.modules):
        for statement in ast.walk(ast.parse(source_of(name), feature_version=version)):  # type: ignore[arg-type]
            imported = [alias.name for alias in statement.names] if isinstance(statement, ast.Import) else []
            if isinstance(statement, ast.ImportFrom):
                imported = [statement.module or ""]
            for module in imported:
                known = module.split(".")[0] in sys.stdlib_module_names
                assert known or module in program.modules[:number], f"{name} imports {module}"


def answered(stdout: bytes) -> Answer:
    return Answer("node1", Outcome.DONE, 0, stdout)


def test_what_a_login_shell_prints_is_no_answer() -> None:
    assert read_answer(answered(b'{"a": 1}\nwelcome\n' + MARK + b'{"a": 2}\n')) == {"a": 2}
    assert read_answer(answered(b"no end of line\n" + MARK + b'{"a": 2}\nlogout\n')) == {"a": 2}


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        (b"", "gave no answer"),
        (b'{"a": 1}\n', "gave no answer"),
        (b"\n" + MARK + b'{"a": 1}', "gave no answer"),
        (b"\n" + MARK + b"{\n", "not valid JSON"),
        (b"\n" + MARK + b"\xff\n", "not valid JSON"),
        (b"\n" + MARK + b"[]\n", "must contain one JSON object"),
        (b"\n" + MARK + b"{" + b"[]," * 1_000_001 + b"}\n", "more than 1,000,000 values"),
    ],
)
def test_an_answer_that_is_none_is_refused(printed: bytes, reason: str) -> None:
    with pytest.raises(HostError, match="node1.*" + reason):
        read_answer(answered(printed))
