"""`glmforge cluster bench`: how fast ranks communicate, and which host or path is slower than the others."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glmforge.errors import ConfigError, HostError

if TYPE_CHECKING:
    from glmforge_ops.health.bandwidth import Row


class Backend(StrEnum):
    """What carries the messages."""

    auto = "auto"
    nccl = "nccl"
    gloo = "gloo"


_COLLECTIVES = "all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send_recv"
_MAX_LOCAL = 512


def bench(
    local: Annotated[
        int | None,
        typer.Option(help="Start this many ranks on this machine.", show_default="those of torchrun or srun"),
    ] = None,
    backend: Annotated[Backend, typer.Option(help="'auto' is NCCL where there is a GPU.")] = Backend.auto,
    collective: Annotated[
        list[str] | None, typer.Option(help=f"Repeatable: {_COLLECTIVES}.", show_default="all")
    ] = None,
    min_bytes: Annotated[str, typer.Option(help="Smallest message: 8, 64K, 1M, 2G; sizes double.")] = "1M",
    max_bytes: Annotated[str, typer.Option(help="Largest message.")] = "64M",
    iterations: Annotated[int, typer.Option(min=1, help="Calls that are timed together.")] = 20,
    expect: Annotated[
        float | None,
        typer.Option(help="Bus bandwidth in GB/s: less than 0.8 of it fails. With --find-slow: of a pair of hosts."),
    ] = None,
    find_slow: Annotated[
        bool, typer.Option("--find-slow", help="Compare hosts pair by pair instead of measuring collectives.")
    ] = False,
    timeout: Annotated[float, typer.Option(help="Seconds for a measurement, and for the ranks to meet.")] = 60.0,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the result here, too.")
    ] = None,
) -> None:
    """Measure how fast ranks communicate, or find the host or the path that is slower than the others.

    Collectives are measured in the terms of nccl-tests, and every element of the result is checked. The ranks are those
    of torchrun or srun; with --local they are started here. Without either, on a machine with GPUs, nccl-tests measures
    if it is on PATH. Exit status 1 if an element is wrong, less is reached than expected, or something is slow.

    Examples:

        glmforge cluster bench --local 4 --backend gloo --max-bytes 4M

        torchrun --nproc-per-node 8 -m glmforge cluster bench --collective all_reduce --min-bytes 1G --max-bytes 8G

        srun --nodes 128 --ntasks-per-node 8 glmforge cluster bench --find-slow --json slow.json
    """
    from glmforge_ops.health.bandwidth import KINDS, message_sizes
    from glmforge_ops.health.ranks import choose_backend, run_local

    kinds = list(dict.fromkeys(collective or KINDS))
    for kind in kinds:
        if kind not in KINDS:
            raise ConfigError(f"--collective: unknown collective {kind!r}; choose from {_COLLECTIVES}")
    if json_file == Path("-"):
        raise ConfigError("--json -: the table is on standard output; name a file")
    if local is not None and not 2 <= local <= _MAX_LOCAL:
        raise ConfigError(f"--local {local}: give from 2 to {_MAX_LOCAL} ranks")
    if not 1 <= timeout <= 86_400:
        raise ConfigError(f"--timeout {timeout:g}: give from 1 to 86400 seconds")
    if expect is not None and not (math.isfinite(expect) and expect > 0):
        raise ConfigError(f"--expect {expect:g}: give a bandwidth in GB/s, more than 0")
    chosen = choose_backend(backend.value)
    if find_slow:
        status = (
            _find_slow(chosen, timeout, expect, json_file)
            if local is None
            else run_local(local, _find_slow, chosen, timeout, expect, json_file)
        )
        raise typer.Exit(status)
    sizes = message_sizes(min_bytes, max_bytes)
    if local is None and chosen == "nccl" and not {"RANK", "SLURM_PROCID"} & os.environ.keys():
        programs = [shutil.which(KINDS[kind].program) for kind in kinds]
        if all(programs):
            if json_file is not None:
                raise ConfigError("--json: nccl-tests prints tables only; leave it out, or give --local N for our own")
            raise typer.Exit(_nccl_tests([program for program in programs if program], sizes, iterations, expect))
    arguments = (chosen, kinds, sizes, iterations, timeout, expect, json_file)
    raise typer.Exit(_bench(*arguments) if local is None else run_local(local, _bench, *arguments))


def _bench(
    backend: str,
    kinds: list[str],
    sizes: list[int],
    iterations: int,
    timeout_s: float,
    expect: float | None,
    json_file: Path | None,
) -> int:
    """On each rank: rank 0 prints. Returns the exit status."""
    from glmforge.runtime.launch import LaunchEnvironment
    from glmforge_ops.health.bandwidth import HEADER, judge, line_of, measure_all
    from glmforge_ops.health.ranks import check_ranks, device_of, joined, lost

    launch = LaunchEnvironment.read()
    check_ranks(launch)
    device = device_of(launch, backend)
    header = list(HEADER)

    def show(row: "Row") -> None:
        if launch.is_main:
            typer.echo("\n".join([*header, line_of(row)]))
            header.clear()
            sys.stdout.flush()

    with joined(launch, backend, device, timeout_s=timeout_s, connect_at_once=True):
        try:
            rows = measure_all(kinds, sizes, iterations, device, show)
        except RuntimeError as error:  # gloo's, NCCL's and the store's
            raise lost(launch, "a collective", error) from error
    if not launch.is_main:
        return 0
    verdicts = [] if expect is None else judge(rows, expect)
    if wrong := sum(row.wrong for row in rows):
        verdicts.append(("fail", f"{wrong:,} elements are wrong: run it host by host to find which"))
    for status, message in verdicts:
        typer.echo(f"{status}: {message}")
    if json_file is not None:
        content = {
            "backend": backend,
            "num_ranks": launch.world_size,
            "iterations": iterations,
            "rows": [asdict(row) for row in rows],
            "verdicts": verdicts,
        }
        _write(json_file, content)
    return int(any(status == "fail" for status, _ in verdicts))


def _find_slow(backend: str, timeout_s: float, expect: float | None, json_file: Path | None) -> int:
    """On each rank: rank 0 prints. Returns the exit status."""
    from glmforge.runtime.launch import LaunchEnvironment
    from glmforge_ops.health.ranks import check_ranks, device_of, joined
    from glmforge_ops.health.slow_host import find_slow

    launch = LaunchEnvironment.read()
    check_ranks(launch)
    device = device_of(launch, backend)
    with joined(launch, backend, device, timeout_s=timeout_s, connect_at_once=False) as store:
        findings, is_broken = find_slow(
            launch,
            store,
            device,
            timeout_s=timeout_s,
            expected_gbs=expect,
            done=lambda line: typer.echo(line, err=True),
        )
        status = 0
        if findings is not None:
            status = int(not findings.is_clean)
            typer.echo("\n".join(findings.lines()))
            if json_file is not None:
                _write(json_file, findings.as_dict())
        if is_broken:  # the teardown of a process group in which something failed may not end
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    return status


def _write(file: Path, content: dict[str, Any]) -> None:
    from glmforge.data.files import write_whole

    write_whole(file, (json.dumps(content, indent=1) + "\n").encode())


def _nccl_tests(programs: list[str], sizes: list[int], iterations: int, expect: float | None) -> int:
    """Run nccl-tests on this machine's GPUs and show its tables; fails if it does, or below the expected average."""
    import torch

    failed = False
    for program in programs:
        command = [program, "-b", str(sizes[0]), "-e", str(sizes[-1]), "-f", "2", "-g", str(torch.cuda.device_count())]
        try:
            ended = subprocess.run([*command, "-n", str(iterations)], capture_output=True, text=True, check=False)
        except OSError as error:
            raise HostError(f"{program}: cannot be run ({error.strerror}); give --local N to measure without") from None
        typer.echo(ended.stdout + ended.stderr)
        average = re.search(r"Avg bus bandwidth\s*:\s*([\d.]+)", ended.stdout)
        failed |= ended.returncode != 0 or average is None
        if expect is not None and average is not None and float(average[1]) < 0.8 * expect:
            typer.echo(f"fail: {Path(program).name}: {average[1]} GB/s on average, {expect:g} expected")
            failed = True
    return int(failed)
