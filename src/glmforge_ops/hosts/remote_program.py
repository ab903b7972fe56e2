"""Programs of ours that run on nodes: how they get there, receive an order, and answer.

The node's command line is one fixed text, `BOOT`. The program itself, modules of this package that need only Python's
standard library, follows on standard input, and then its order, as a line of JSON: no name, path or text of a user is
ever part of a command line or of a program. `on_node.wire` is the other side.

A node's Python starts without its site-packages (`-S`) and without what the environment or the directory would add
(`-I`). An answer counts only after `MARK`, and only if it is JSON of bounded size.
"""

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from glmforge.errors import HostError
from glmforge.files import parse_json
from glmforge.runtime.hostfile import LOCAL
from glmforge_ops.hosts.fanout import Answer
from glmforge_ops.hosts.on_node.wire import MARK

PYTHON = "python3"
"""Default of nodes."""

WIRE = "glmforge_ops.hosts.on_node.wire"
"""The module that every program begins with."""

BOOT = (
    "import sys\n"
    "if sys.version_info<tuple(map(int,sys.argv[1].split('.'))):"
    " sys.exit('Python '+sys.argv[1]+' or newer is needed there')\n"
    "import json\n"
    "m=type(sys);i=sys.stdin.buffer;p=i.read(int(i.readline()))\n"
    "for n,t in json.loads(p):\n"
    " m=sys.modules[n]=type(sys)(n);exec(compile(t,n,'exec',dont_inherit=True),m.__dict__)\n"
    "m.main(p)"
)


@dataclass(frozen=True)
class RemoteProgram:
    """A program for nodes.

    Attributes:
        modules: full names, each after those that it imports; the last one's `main` runs, with what was sent.
        oldest: the first version of Python that can run it.
    """

    modules: tuple[str, ...]
    oldest: str = "3.11"

    def sent(self, *orders: Mapping[str, Any]) -> bytes:
        """What goes to its standard input: the program, and its orders."""
        bundle = _bundle(self.modules)
        return b"%d\n" % len(bundle) + bundle + b"".join(json.dumps(order).encode() + b"\n" for order in orders)

    def script(self, host: str, python: str = PYTHON) -> str:
        """The shell command that starts it on `host`; on this machine with our own Python."""
        words = [sys.executable if host in LOCAL else python, "-I", "-S", "-c", BOOT, self.oldest]
        return f"exec {shlex.join(words)}"


def read_answer(answer: Answer) -> dict[str, Any]:
    """The answer of a program that answers once. Raises `HostError` if it did not."""
    _, mark, after = answer.stdout.rpartition(b"\n" + MARK)
    line, end, _ = after.partition(b"\n")
    if not mark or not end:
        raise HostError(f"{answer.host}: its Python gave no answer; look at what its login shell prints")
    found: dict[str, Any] = parse_json(
        line.decode("utf-8", "replace"), dict, source=f"{answer.host}'s answer", error=HostError
    )
    return found


@cache
def _bundle(modules: Sequence[str]) -> bytes:
    return json.dumps([(name, source_of(name)) for name in modules]).encode() + b"\n"


@cache
def source_of(module: str) -> str:
    """The text of a module of ours."""
    package, _, name = module.rpartition(".")
    return files(package).joinpath(f"{name}.py").read_text("utf-8")
