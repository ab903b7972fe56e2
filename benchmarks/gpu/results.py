"""What a part has found, in a JSON file that is whole after every figure: a run that is cut keeps what it has.

The file is also the part's memory: a figure stands in it as "running" while it is measured, so that a process that
takes the place of one that died knows which figure it died of, and goes on behind it.
"""

import gc
import json
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

Figure = dict[str, Any]

FAILURES = ("failed", "out of memory", "crashed", "hung")
"""What makes the exit status of a part 1, unless the figure is another library's. "dropped" (no time left), "missing"
(something is not installed) and "too large" (for this device, by the dry run) do not."""


class MissingError(Exception):
    """Something that a figure needs is not installed; the message says what, and how to bring it."""


class TooLargeError(Exception):
    """A figure needs more memory than the device has free; the message says how much."""


def not_installed(name: str | None) -> str:
    return f"{name} is not installed: carry it (scripts/gpu.sh wheels where there is a network, see docs/gpu.md)"


class LostContextError(Exception):
    """The CUDA context is gone: nothing more can be measured in this process."""


class Results:
    """The figures of one part in `file`; those of a run that is resumed are taken over."""

    def __init__(self, file: Path, header: Figure, *, resume: bool = False) -> None:
        self.file = file
        self.content: Figure = header | {"complete": False, "figures": {}}
        if resume and file.exists():
            self.content = json.loads(file.read_text("utf-8"))
        self.write()

    @property
    def figures(self) -> dict[str, Figure]:
        return self.content["figures"]

    def write(self) -> None:
        write_whole(self.file, self.content)

    def set(self, name: str, **values: Any) -> None:
        self.figures[name] = self.figures.get(name, {}) | values
        self.write()

    def measure(self, name: str, function: Callable[[], Figure], *, is_ours: bool = True) -> Figure | None:
        """Record what `function` gives, or why it gave nothing; None then, and where it is known already.

        Raises `LostContextError` when the failure took the CUDA context along.
        """
        if name in self.figures:
            return None
        start = time.time()
        self.set(name, status="running", started=round(start, 1), is_ours=is_ours)
        values: Figure | None = None
        try:
            values = function()
            outcome = {"status": "ok"} | values
        except MissingError as missing:
            outcome = {"status": "missing", "reason": str(missing)}
        except TooLargeError as error:
            outcome = {"status": "too large", "reason": str(error)}
        except torch.OutOfMemoryError as error:
            outcome = {"status": "out of memory", "reason": _first_line(error)}
        except Exception as error:  # noqa: BLE001 - one figure's failure is recorded, and the others are measured
            outcome = {"status": "failed", "reason": _first_line(error), "traceback": traceback.format_exc()[-4000:]}
        self.set(name, **outcome, took_s=round(time.time() - start, 2))
        if values is None:
            _recover()
        return values

    @property
    def failures(self) -> list[str]:
        return [name for name, figure in self.figures.items() if is_failure(figure)]


def write_whole(file: Path, content: Figure) -> None:
    """JSON; the file is the old one or the new one, never half of one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_suffix(".json.part")
    beside.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")
    beside.replace(file)


def is_failure(figure: Figure) -> bool:
    return figure["status"] in FAILURES and figure.get("is_ours", True)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:400]


def _recover() -> None:
    """Give back what the failed figure held."""
    gc.collect()
    if torch.cuda.is_available():
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            raise LostContextError(_first_line(error)) from error
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
