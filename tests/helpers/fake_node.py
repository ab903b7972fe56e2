"""A node that is a directory: its `/proc` and `/sys`, its tools with recorded output, its driver's library.

Gathering functions of `health.checks` are called about it in this process. What no file can tell (the size of
`/dev/shm`, the CPUs of this process) stands in attributes. `healthy` makes one that every check passes.
"""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pynvml
import pytest

from glmforge.config.cluster import ClusterConfig
from glmforge_ops.health.checks.check import Facts, Gather, Outcome
from glmforge_ops.health.checks.node import ROOT

GIB = 1 << 30
_SOURCE = Path(__file__).with_name("fake_nvml.c")


def compile_nvml(directory: Path, *options: str) -> Path:
    """The library, or a skipped test where there is no compiler."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    library = directory / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), *options, str(_SOURCE)], check=True)
    return library


class FakeNode:
    """See the module."""

    def __init__(self, root: Path, library: Path | None) -> None:
        self.root, self.library = root, library
        self.shm_total, self.shm_free = 64 * GIB, 64 * GIB
        self.cpus = 4
        self.skew_s = 0.0
        self.while_waiting: Callable[[], object] = lambda: None
        self.gpus: dict[str, str] = {}
        (root / "bin").mkdir(parents=True)

    def write(self, path: str, text: object) -> None:
        """A file of the node."""
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def tool(self, name: str, *outputs: tuple[str, str]) -> None:
        """A program that prints recorded output, by a pattern of its arguments; it fails for all others."""
        cases = "".join(f"*'{pattern}'*) /bin/cat <<'END'\n{text}\nEND\n;;\n" for pattern, text in outputs)
        program = self.root / "bin" / name
        program.write_text(f'#!/bin/sh\ncase "$*" in\n{cases}*) exit 2;;\nesac\n')
        program.chmod(0o755)

    @contextmanager
    def file(self, path: str, text: object) -> Iterator[None]:
        """Another content, for a while; None: the file is gone."""
        file = self.root / path.lstrip("/")
        before = file.read_bytes() if file.exists() else None
        if text is None:
            file.unlink()
        else:
            self.write(path, text)
        yield
        if before is None:
            file.unlink()
        else:
            file.write_bytes(before)

    @contextmanager
    def tool_instead(self, name: str, *outputs: tuple[str, str]) -> Iterator[None]:
        """Another recorded output, for a while; without any, the tool is not installed."""
        program = self.root / "bin" / name
        before = program.read_bytes() if program.exists() else None
        program.unlink(missing_ok=True)
        if outputs:
            self.tool(name, *outputs)
        yield
        program.unlink(missing_ok=True)
        if before is not None:
            program.write_bytes(before)
            program.chmod(0o755)

    @contextmanager
    def driver(self, **values: object) -> Iterator[None]:
        """Other answers of the driver's library, for a while: of the second GPU."""
        with self.attribute("gpus", self.gpus | {f"1.{name}": str(value) for name, value in values.items()}):
            yield

    @contextmanager
    def attribute(self, name: str, value: object) -> Iterator[None]:
        """Another value of an attribute, for a while."""
        before = getattr(self, name)
        setattr(self, name, value)
        yield
        setattr(self, name, before)

    def gather(self, functions: list[Gather], cluster: ClusterConfig) -> dict[Gather, Facts | Outcome]:
        """What these functions find out."""
        self.write("nvml", "\n".join(f"{key} {value}" for key, value in self.gpus.items()))
        environment = {ROOT: str(self.root), "PATH": str(self.root / "bin"), "FAKE_NVML_STATE": str(self.root / "nvml")}
        shm = SimpleNamespace(f_blocks=self.shm_total, f_bavail=self.shm_free, f_frsize=1, f_files=0, f_favail=0)
        settings = cluster.model_dump(mode="json")
        now = 1e9
        clock = [now, now + 0.4 + self.skew_s, now + 0.5 + self.skew_s, now + 0.6]
        library: Any = ctypes.CDLL(str(self.library)) if self.library is not None else None
        with (
            mock.patch.dict(os.environ, environment),
            mock.patch.multiple(pynvml, nvmlLib=library, _nvmlGetFunctionPointer_cache={}),
            mock.patch("os.statvfs", return_value=shm),
            mock.patch("os.sched_getaffinity", return_value=set(range(self.cpus))),
            mock.patch("time.sleep", side_effect=lambda seconds: self.while_waiting()),
        ):
            return {function: function(settings) | {"clock": clock} for function in functions}
