"""What a dry run of every shipped configuration and of every schedule finds and costs: peak, seconds and gigabytes.

    python benchmarks/dry_runs.py                 # all of them, about ten minutes on two idle cores
    python benchmarks/dry_runs.py --only air      # those whose name or settings have "air"; the others stay

Every file of configs/ and every packaged run, on as many GPUs as it is for; of the phases those that differ in anything
a dry run sees, with the settings that the file's comments give for them. Then every pipeline schedule on the largest of
them, those of several stages per rank also with four. Each is the real command in a process of its own. What is
measured of it: the wall time; the processor seconds of all its processes, sampled five times a second; and the most
memory that they had resident together, once as the sum (what processes share counted in each) and once with what is
shared divided among them.

It fails, with one line for each, if a run takes more than 30 s, more than 1.5 GB, or finds that the fullest rank of a
shipped file needs more than 80 % of its GPU, of 80 GB unless the file is for another (under another schedule than the
file's it may need more). On a busy
machine a run that takes longer passes if its processor seconds are within the limit: idle cores would take less.
"""

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

import psutil
from fine_tuning_memory import PRESETS
from harness import arguments, result
from record import ROOT, write_result

from glmforge.config import load_config
from glmforge.config.phase import PhaseConfig
from glmforge.plan.machine.machine import find_machine

MOST_SECONDS, MOST_BYTES, MOST_OF_GPU = 30, 1.5e9, 0.8
GPU_BYTES = 80e9
RECOMPUTED, SHARED = ("parallel.recompute=full",), ("parallel.cp=8",)

LONG = ("repository_code", "synthetic_reasoning", "long_context_and_agents")
ELSEWHERE = None
"""Another file is for these phases of the run."""

# File or packaged run -> GPUs, and the settings that its comments give for some of its phases.
SHIPPED: dict[str, tuple[int, dict[str, tuple[str, ...] | None]]] = {
    "demo": (1, {}),
    "configs/demo.yaml": (1, {}),
    "configs/curriculum_local.yaml": (1, {}),
    "configs/small_1b.yaml": (1, {}),
    "configs/scaled_down_64gpu.yaml": (64, {}),
    "configs/pretrain_glm45_air_106b.yaml": (
        1024,
        {
            "repository_code": RECOMPUTED,
            "synthetic_reasoning": RECOMPUTED,
            "long_context_and_agents": RECOMPUTED + SHARED,
        },
    ),
    "configs/pretrain_glm45_355b.yaml": (8192, dict.fromkeys(LONG, ELSEWHERE)),
    "configs/pretrain_glm45_355b_long.yaml": (8192, {"general": ELSEWHERE}),
    "configs/pretrain_glm45_355b_guide.yaml": (8192, {"mid_training": SHARED}),
    "configs/midtrain_code.yaml": (128, {}),
    "configs/midtrain_medicine.yaml": (128, {}),
    "configs/midtrain_finance.yaml": (128, {}),
    "configs/midtrain_32k.yaml": (128, {}),
    "configs/midtrain_128k.yaml": (128, {}),
    "configs/midtrain_200k.yaml": (1024, {}),
    "configs/pretrain_glm46_355b.yaml": (8192, dict.fromkeys(LONG, RECOMPUTED)),
    **{name: (world_size, {}) for name, (world_size, _) in PRESETS.items()},
}

NOT_MEASURED = ("demo_sft", "lora")
"""The first has the demo's model and layout, the second the model of whatever weights it is given."""

WITH_SCHEDULES = "configs/pretrain_glm45_355b.yaml", 8192, "general"
"""The run that is laid out by every schedule: 16 pipeline ranks, 64 micro-batches."""
SEVERAL_STAGES = ("interleaved_1f1b", "looped_bfs", "interleaved_zero_bubble")
SPLIT = ("interleaved_zero_bubble", "zbv", "dualpipev")
"""With a split backward pass layers are computed again for each group of weights: nobody recomputes under these."""
SCHEDULES = [
    (f"parallel.pipeline_schedule={name}", *(("parallel.recompute=none",) if name in SPLIT else ()), *stages)
    for names, stages in (
        (("gpipe", "1f1b", *SEVERAL_STAGES, "zbv", "dualpipev"), ()),
        (SEVERAL_STAGES, ("parallel.pipeline_stages_per_rank=4",)),
    )
    for name in names
]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", default="", help="only files and schedules whose name has this; others stay")
    args = parser.parse_args()
    only, before = args.only, result("dry_runs") if args.only else {}
    found: dict[str, Any] = before.get("runs", {})
    scheduled: dict[str, Any] = before.get("schedules", {})
    failures = _not_listed()
    for name, (world_size, settings) in SHIPPED.items():
        if only not in name:
            continue
        for phase in different_phases(load_config(where(name)).phases):
            options = settings.get(phase, ())
            if options is None:
                continue
            row = found[f"{name} {phase}"] = _measure(name, world_size, phase, options)
            failures += _failures(row)
    for options in SCHEDULES:
        if only in " ".join(options):
            row = scheduled[" ".join(options)] = _measure(*WITH_SCHEDULES, options)
            failures += _failures(row, must_fit=False)
    limits = {"seconds": MOST_SECONDS, "bytes": MOST_BYTES, "share_of_gpu": MOST_OF_GPU, "gpu_bytes": GPU_BYTES}
    code = ["src/glmforge/dryrun", "src/glmforge/parallel", "src/glmforge/model", "src/glmforge/optim"]
    content = {"limits": limits, "runs": found, "schedules": scheduled}
    write_result("dry_runs", content, code=[*code, "configs", "src/glmforge/config"], out=args.out)
    if failures:
        sys.exit("\n".join(failures))


def _not_listed() -> list[str]:
    """Shipped files that this script does not know."""
    shipped = [f"configs/{file.name}" for file in sorted((ROOT / "configs").glob("*.yaml"))]
    shipped += [file.stem for file in sorted((ROOT / "src/glmforge/config/presets/runs").glob("*.yaml"))]
    known = {*SHIPPED, *NOT_MEASURED}
    return [f"{name}: not measured; put it into SHIPPED of {__file__}" for name in shipped if name not in known]


def where(name: str) -> str:
    return str(ROOT / name) if name.endswith(".yaml") else name


def gpu_bytes(name: str) -> float:
    """Memory of the GPU that a shipped file is for."""
    return find_machine(PRESETS[name][1]).accelerator.memory_bytes if name in PRESETS else GPU_BYTES


def different_phases(phases: list[PhaseConfig]) -> list[str]:
    """Names of the phases, of those that a dry run cannot tell apart the first."""
    kinds = {
        (phase.seq_len, phase.batch_size, phase.mtp_loss_weight > 0, phase.aux_loss_weight > 0): phase.name
        for phase in reversed(phases)
    }
    return [phase.name for phase in phases if phase.name in kinds.values()]


def _measure(name: str, world_size: int, phase: str, settings: tuple[str, ...]) -> dict[str, Any]:
    options = ["--world-size", str(world_size), "--phase", phase, "--dry-run", "--json"]
    command = [sys.executable, "-m", "glmforge", "plan", where(name), *settings, *options]
    started = time.perf_counter()
    process = psutil.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    cost = _watch(process)
    output, errors = process.communicate()
    seconds = time.perf_counter() - started
    if process.returncode:
        sys.exit(f"{name}, phase {phase}: {errors.decode().strip()}")
    told = json.loads(output)
    row = {
        "file": name,
        "phase": phase,
        "settings": list(settings),
        "world_size": world_size,
        "places": len(told["classes"]),
        "contents": len({(str(kind["held_bytes"]), len(kind["stages"])) for kind in told["classes"]}),
        "peak_bytes": told["peak_bytes"],
        "fullest_place": max(told["classes"], key=lambda kind: kind["peak_bytes"])["pp_rank"],
        "share_of_gpu": round(told["peak_bytes"] / gpu_bytes(name), 3),
        "seconds": round(seconds, 1),
        "load_average": round(os.getloadavg()[0], 1),
        **cost,
    }
    print(_words(row), flush=True)
    return row


def _watch(process: psutil.Popen) -> dict[str, float]:
    """Processor seconds and most memory of a process and all that it starts, until it has ended."""
    cpu: dict[int, float] = {}
    most_resident = most_proportional = 0
    while process.poll() is None:
        resident = proportional = 0
        with suppress(psutil.NoSuchProcess):  # a process may end between two looks
            for each in (process, *process.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    memory, times = each.memory_full_info(), each.cpu_times()
                    cpu[each.pid] = times.user + times.system
                    resident, proportional = resident + memory.rss, proportional + memory.pss
        most_resident, most_proportional = max(most_resident, resident), max(most_proportional, proportional)
        time.sleep(0.2)
    return {
        "cpu_seconds": round(sum(cpu.values()), 1),
        "resident_bytes": most_resident,
        "proportional_bytes": most_proportional,
    }


def _failures(row: dict[str, Any], *, must_fit: bool = True) -> list[str]:
    name = " ".join([f"{row['file']}, phase {row['phase']}", *row["settings"]])
    failures = []
    if min(row["seconds"], row["cpu_seconds"]) > MOST_SECONDS:
        failures.append(f"{name}: {row['seconds']} s, {row['cpu_seconds']} of the processor; at most {MOST_SECONDS}")
    if row["resident_bytes"] > MOST_BYTES:
        failures.append(f"{name}: {row['resident_bytes'] / 1e9:.2f} GB; at most {MOST_BYTES / 1e9} GB")
    if must_fit and row["share_of_gpu"] > MOST_OF_GPU:
        failures.append(f"{name}: the fullest rank needs {row['share_of_gpu']:.0%} of a GPU; at most {MOST_OF_GPU:.0%}")
    return failures


def _words(row: dict[str, Any]) -> str:
    return (
        f"{' '.join([row['file'], *row['settings']])} {row['phase']}: {row['world_size']} GPUs, "
        f"{row['contents']} contents, "
        f"place {row['fullest_place']} needs {row['peak_bytes'] / 2**30:.1f} GiB = {row['share_of_gpu']:.0%}; "
        f"{row['seconds']} s ({row['cpu_seconds']} of the processor, load {row['load_average']}), "
        f"{row['resident_bytes'] / 1e9:.2f} GB ({row['proportional_bytes'] / 1e9:.2f})"
    )


if __name__ == "__main__":
    main()
