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
from typing import Annotated, Any

import typer

from glmforge.errors import ConfigError


class Backend(StrEnum):
    """What carries the messages."""

    auto = "auto"
    nccl = "nccl"
    gloo = "gloo"


def bench(
    local: Annotated[
        int | None,
        typer.Option(min=2, max=512, help="Start this many ranks here.", show_default="those of torchrun or srun"),
    ] = None,
    backend: Annotated[Backend, typer.Option(help="'auto' is NCCL where there is a GPU.")] = Backend.auto,
    collective: Annotated[
        list[str] | None,
        typer.Option(
            help="all_reduce, all_gather, reduce_scatter, all_to_all, broadcast or send_recv; may be repeated.",
            show_default="all",
        ),
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
    timeout: Annotated[
        float, typer.Option(min=1, max=86_400, help="Seconds for a measurement, and for the ranks to meet.")
    ] = 60.0,
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

    if json_file == Path("-"):
        raise ConfigError("--json -: the table is on standard output; name a file")
    if expect is not None and not (math.isfinite(expect) and expect > 0):
        raise ConfigError(f"--expect {expect:g}: give a bandwidth in GB/s, more than 0")
    chosen, sizes = choose_backend(backend.value), message_sizes(min_bytes, max_bytes)
    kinds = list(dict.fromkeys(collective or KINDS))
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise ConfigError(f"--collective: unknown collective {unknown[0]!r}; choose from {', '.join(KINDS)}")
    if not find_slow and local is None and chosen == "nccl" and not {"RANK", "SLURM_PROCID"} & os.environ.keys():
        programs = [shutil.which(KINDS[kind].program) for kind in kinds]
        if all(programs):
            if json_file is not None:
                raise ConfigError("--json: nccl-tests prints tables only; leave it out, or give --local N for our own")
            raise typer.Exit(_nccl_tests([program for program in programs if program], sizes, iterations, expect))
    function, arguments = _bench, (chosen, timeout, expect, json_file, kinds, sizes, iterations)
    if find_slow:
        function, arguments = _find_slow, arguments[:4]  # type: ignore[assignment]
    raise typer.Exit(function(*arguments) if local is None else run_local(local, function, *arguments))


def _bench(
    backend: str,
    timeout_s: float,
    expect: float | None,
    json_file: Path | None,
    kinds: list[str],
    sizes: list[int],
    iterations: int,
) -> int:
    """On each rank: rank 0 prints. Returns the exit status."""
    import torch

    from glmforge.runtime.launch import LaunchEnvironment
    from glmforge_ops.health.bandwidth import HEADER, judge, line_of, measure
    from glmforge_ops.health.ranks import device_of, joined

    launch, rows = LaunchEnvironment.read(), []
    device = device_of(launch, backend)
    show = typer.echo if launch.is_main else lambda line: None
    with joined(launch, backend, device, timeout_s=timeout_s, connect_at_once=True):
        show("\n".join(HEADER))
        for kind in kinds:
            for size in sizes:
                rows.append(measure(kind, size, iterations, device))
                show(line_of(rows[-1]))
    verdicts = [] if expect is None else judge(rows, expect)
    if wrong := sum(row.wrong for row in rows):
        verdicts.append(("fail", f"{wrong:,} elements are wrong: run it host by host to find which"))
    for status, message in verdicts:
        show(f"{status}: {message}")
    if launch.is_main and json_file is not None:
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
        content = {"backend": backend, "device": name, "num_ranks": launch.world_size, "iterations": iterations}
        _write(json_file, content | {"rows": [asdict(row) for row in rows], "verdicts": verdicts})
    return int(launch.is_main and any(status == "fail" for status, _ in verdicts))


def _find_slow(backend: str, timeout_s: float, expect: float | None, json_file: Path | None) -> int:
    """On each rank: rank 0 prints. Returns the exit status."""
    from glmforge.runtime.launch import LaunchEnvironment
    from glmforge_ops.health.ranks import device_of, joined
    from glmforge_ops.health.slow_host import find_slow

    launch, status = LaunchEnvironment.read(), 0
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

    from glmforge_ops.health.bandwidth import REACHED

    failed = False
    for program in programs:
        command = [program, "-b", str(sizes[0]), "-e", str(sizes[-1]), "-f", "2", "-g", str(torch.cuda.device_count())]
        ended = subprocess.run([*command, "-n", str(iterations)], capture_output=True, text=True, check=False)
        typer.echo(ended.stdout + ended.stderr)
        average = re.search(r"Avg bus bandwidth\s*:\s*([\d.]+)", ended.stdout)
        failed |= ended.returncode != 0 or average is None
        if expect is not None and average is not None and float(average[1]) < REACHED * expect:
            typer.echo(f"fail: {Path(program).name}: {average[1]} GB/s on average, {expect:g} expected")
            failed = True
    return int(failed)
