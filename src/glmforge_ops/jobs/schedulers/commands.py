"""A scheduler's own commands, asked with a limit of time."""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from glmforge.errors import LaunchError
from glmforge.files import escaped

_LIMIT_S = 30.0
_LONGEST_REASON = 300
SLURMS_ANSWER_IS_LOST = ("timed out", "Zero Bytes were transmitted")
"""What Slurm's commands say when its controller is too busy to answer: it may have done what was asked."""
_SLURM_IS_DOWN = ("Unable to contact", *SLURMS_ANSWER_IS_LOST)


class NoAnswerError(LaunchError):
    """The scheduler itself does not answer, which says nothing of its jobs."""


@dataclass(frozen=True)
class Answer:
    """What a command printed, and its status."""

    status: int
    stdout: str
    stderr: str

    @property
    def reason(self) -> str:
        """What it complained of, in one line: without the program's name and the word error."""
        lines = [line.strip() for line in (self.stderr.strip() or self.stdout.strip()).splitlines()]
        text = lines[-1] if lines else f"status {self.status}"
        for prefix in ("error:", "fatal:", "allocation failure:"):
            text = text.rpartition(prefix)[2].strip() or text
        return escaped(text)[:_LONGEST_REASON]


def ask(
    *command: str,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str = "",
    limit_s: float = _LIMIT_S,
    mend: str = "; try again, or ask who runs it",
) -> Answer:
    """Run a command with this process's environment, or another. Raises `LaunchError`, `NoAnswerError`.

    Args:
        mend: what to do if it does not answer; empty if the caller says it.
    """
    try:
        done = subprocess.run(
            command,
            env=dict(os.environ if environment is None else environment) | {"LC_ALL": "C"},
            cwd=cwd,
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
        )
    except FileNotFoundError:
        raise LaunchError(
            f"{command[0]}: is not on this machine; run this where jobs are submitted, or choose another --launcher"
        ) from None
    except PermissionError as error:
        raise LaunchError(f"{command[0]}: cannot be run ({error.strerror}); see who may use it") from None
    except subprocess.TimeoutExpired as error:
        said = Answer(1, "", (error.stderr or b"").decode(errors="replace")).reason if error.stderr else ""
        why = f" ({said})" if said else ""
        raise NoAnswerError(f"{command[0]}: no answer within {limit_s:g} s{why}{mend}") from None
    return Answer(done.returncode, done.stdout, done.stderr)


def slurms_error(answer: Answer, command: str) -> LaunchError:
    """What to raise for a command of Slurm's that failed: `NoAnswerError` if its controller is down."""
    kind = NoAnswerError if any(words in answer.stderr for words in _SLURM_IS_DOWN) else LaunchError
    return kind(f"{command}: {answer.reason}")
