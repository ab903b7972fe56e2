"""Functions that a verifier may be, good and bad: what workers of `glmforge.verify.pool` call by name."""

import os
import signal
import socket
import sys
import time
from pathlib import Path


def double(x):
    return 2 * x


def hang(mark=None):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if mark is not None:
        Path(mark).write_text(str(os.getpid()))
    while True:
        signal.pause()


def leave():
    sys.exit(0)


def end():
    os._exit(0)


def fail():
    raise ValueError("two\nlines")


def devour():
    """3 GiB."""
    return len([bytearray(1 << 26) for _ in range(48)])


def talk(x):
    print("[1, 99, '']", flush=True)
    os.write(1, b"[1]\n")
    print("stdin:", sys.stdin.read())
    return x


def fork(x, mark):
    """Both processes return; the child later, and marks that it lives until then."""
    if os.fork() == 0:
        Path(mark).write_text(str(os.getpid()))
        return "child"
    while not Path(mark).exists():
        time.sleep(0.005)
    return x


def leave_child(mark):
    """A child that outlives the call."""
    if (child := os.fork()) == 0:
        hang()
    Path(mark).write_text(str(child))
    return child


def unprintable():
    return object()


def flood():
    return "x" * (20 << 20)


def seen(path, port):
    """Whether a file is there, a secret of the environment, whether a port answers."""
    try:
        socket.create_connection(("127.0.0.1", port), 2).close()
        connects = True
    except OSError:
        connects = False
    return [Path(path).exists(), os.environ.get("API_KEY"), connects]


def pid():
    return os.getpid()


def loaded():
    return sorted({name.partition(".")[0] for name in sys.modules})


def wait_for(begun, go):
    """Until the file `go` is there."""
    Path(begun).touch()
    while not Path(go).exists():
        time.sleep(0.005)
    return "done"


def count_words(prompt, reply, options):
    return options.get("worth", 1.0) * len(reply.split()) + len(prompt["messages"])
