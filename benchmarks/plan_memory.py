"""The planner's closed forms of memory against dry runs: every place of every shipped file, and of two dozen others.

    python benchmarks/plan_memory.py              # all of them, some ten minutes on two idle cores
    python benchmarks/plan_memory.py --again      # the dry runs of the last time against today's closed forms, at once
    python benchmarks/plan_memory.py --only zbv   # those whose name matches; the others stay

Shipped files are those of `dry_runs.py`, with the phases and settings that it has. The others are layouts of a model of
8 layers on 8 to 64 GPUs: each way of sharing, recomputation, schedule, micro-batch, offload and optimizer once. Each
row has what the dry run found at the fullest moment of the fullest place, purpose by purpose, and what
`glmforge.plan.memory` says of that place; beside it the largest error of the peak over all places.
"""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from dry_runs import SHIPPED, different_phases, where
from fine_tuning_memory import PRESETS
from harness import arguments, result
from record import write_result

from glmforge.config import load_config
from glmforge.config.layout import resolve_layout
from glmforge.config.schema import RunConfig
from glmforge.dryrun.run import dry_run
from glmforge.plan.layout import select_phase
from glmforge.plan.memory.estimate import estimate_memory
from glmforge.plan.memory.purposes import Memory, Purpose
from glmforge.plan.stages.stage import stage_of


class Case(NamedTuple):
    """A file or packaged run, a phase, settings and a number of GPUs; `name` is short and its own."""

    name: str
    file: str
    phase: str
    settings: tuple[str, ...]
    world_size: int


_ALIKE = "configs/pretrain_glm46_355b.yaml"
"""It has the shapes and the layouts of pretrain_glm45_355b and pretrain_glm45_355b_long."""
_SMALL = "configs/scaled_down_64gpu.yaml"
_BATCH = ("model.num_hidden_layers=8", "phases.0.batch_size=64", "phases.0.batch_ramp=null", "parallel.compile=false")
_OTHERS: dict[str, tuple[int, str]] = {
    "fsdp": (8, "cp=1 ep=1"),
    "fsdp, recompute none": (8, "cp=1 ep=1 recompute=none"),
    "fsdp, recompute full": (8, "cp=1 ep=1 recompute=full"),
    "fsdp, micro-batch 4": (8, "cp=1 ep=1 micro_batch_size=4"),
    "fsdp, one reduction": (8, "cp=1 ep=1 reduce_gradients=last_micro_batch"),
    "fsdp, weights kept": (8, "cp=1 ep=1 reshard_after_forward=false"),
    "fsdp, activations in host memory": (8, "cp=1 ep=1 recompute=none activation_offload=true"),
    "hsdp": (16, "cp=1 ep=1 dp_replicate=2"),
    "ep": (8, "cp=1 ep=8 recompute=none"),
    "cp gather": (8, "cp=4 ep=1 recompute=none"),
    "cp ulysses": (8, "cp=4 ep=1 recompute=none context_method=ulysses"),
    "tp": (8, "cp=1 ep=1 tp=4"),
    "tp, recompute none": (8, "cp=1 ep=1 tp=4 recompute=none"),
    "tp without sequence parallelism": (8, "cp=1 ep=1 tp=4 sequence_parallel=false recompute=none"),
    "tp, ep, recompute full": (16, "cp=1 ep=8 tp=2 recompute=full"),
    "gpipe": (16, "cp=1 ep=4 pp=4 pipeline_schedule=gpipe"),
    "1f1b": (16, "cp=1 ep=4 pp=4"),
    "1f1b, recompute none": (16, "cp=1 ep=4 pp=4 recompute=none"),
    "1f1b, recompute full": (16, "cp=1 ep=4 pp=4 recompute=full"),
    "interleaved_1f1b": (16, "cp=1 ep=4 pp=4 pipeline_schedule=interleaved_1f1b"),
    "looped_bfs": (16, "cp=1 ep=4 pp=4 pipeline_schedule=looped_bfs"),
    "interleaved_zero_bubble": (16, "cp=1 ep=4 pp=4 recompute=none pipeline_schedule=interleaved_zero_bubble"),
    "zbv": (16, "cp=1 ep=4 pp=4 recompute=none pipeline_schedule=zbv"),
    "dualpipev": (16, "cp=1 ep=4 pp=4 recompute=none pipeline_schedule=dualpipev"),
    "pp, tp, cp": (64, "cp=2 tp=2 ep=8 pp=4"),
}
_OTHER_SETTINGS: dict[str, tuple[int, str, tuple[str, ...]]] = {
    "adamw": (8, "cp=1 ep=1", ("optim.matrix_optimizer=adamw",)),
    "bf16 states": (8, "cp=1 ep=1", ("optim.state_dtype=bf16",)),
    "without MTP": (8, "cp=1 ep=1", ("phases.0.mtp_loss_weight=0",)),
}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", default="", help="only cases whose name matches this expression; the others stay")
    parser.add_argument("--again", action="store_true", help="compare the dry runs of the last time with today's forms")
    options = parser.parse_args()
    last = {row["name"]: row for row in result("plan_memory").get("runs", [])}
    rows = []
    for case in cases():
        if not re.search(options.only, case.name):
            rows += [last[case.name]] if case.name in last else []
        elif case.name in last or not options.again:
            rows.append(_compare(case, last[case.name]["dry_run"] if options.again else None))
            print(_words(rows[-1]), flush=True)
    code = ["src/glmforge/dryrun", "src/glmforge/parallel", "src/glmforge/model", "src/glmforge/optim"]
    worst = max(rows, key=lambda row: abs(row["error"]))
    summary = {"cases": len(rows), "largest_error": worst["error"], "worst": worst["name"]}
    summary["mean_error"] = sum(abs(row["error"]) for row in rows) / len(rows)
    write_result(
        "plan_memory", {"summary": summary, "runs": rows}, code=[*code, "src/glmforge/plan/memory"], out=options.out
    )


def cases() -> Iterator[Case]:
    """All of them; the shipped files last."""
    small = {name: (size, parallel, ()) for name, (size, parallel) in _OTHERS.items()} | _OTHER_SETTINGS
    for name, (world_size, parallel, more) in small.items():
        chosen = (*_BATCH, *(f"parallel.{setting}" for setting in parallel.split()), *more)
        yield Case(name, _SMALL, "general", chosen, world_size)
    for file, (world_size, settings) in SHIPPED.items():
        if file == _ALIKE or file in PRESETS:  # `fine_tuning_memory.py` has the latter
            continue
        for phase in different_phases(load_config(where(file)).phases):
            options = settings.get(phase, ())
            if options is not None:
                yield Case(f"{file.split('/')[-1]} {phase}", file, phase, options, world_size)


def _compare(case: Case, known: dict[str, Any] | None) -> dict[str, Any]:
    config = select_phase(load_config(where(case.file), case.settings), case.phase)
    layout = resolve_layout(config, case.world_size)
    found = known or _dry_run(config, case.world_size)
    places = estimate_memory(config, layout, stage_of(config)).places
    forms = {str(place.pp_rank): _row(place.at_peak, place.moment) for place in places}
    peaks = {pp_rank: (found[pp_rank]["peak"], forms[pp_rank]["peak"]) for pp_rank in found}
    by_dry_run, by_form = (max(both[which] for both in peaks.values()) for which in (0, 1))
    errors = [closed / dry - 1 for dry, closed in peaks.values()]
    return {
        **case._asdict(),
        "settings": list(case.settings),
        "dry_run": found,
        "closed_form": {pp_rank: forms[pp_rank] for pp_rank in found},
        "fullest": max(found, key=lambda pp_rank: found[pp_rank]["peak"]),
        "peak": by_dry_run,
        "error": by_form / by_dry_run - 1,
        "largest_error_of_a_place": max(errors, key=abs),
    }


def _dry_run(config: RunConfig, world_size: int) -> dict[str, Any]:
    """Of each place in the pipeline what it holds between steps, and what lives at its peak."""
    return {
        str(kind.pp_rank): _row(kind.step.at_peak, kind.step.moment)
        | {"held": {str(purpose): size for purpose, size in kind.findings.held.items()}}
        for kind in dry_run(config, world_size).classes
    }


def _row(memory: Memory, moment: str) -> dict[str, Any]:
    return {str(purpose): memory[purpose] for purpose in Purpose} | {"peak": memory.total(), "moment": moment}


def _words(row: dict[str, Any]) -> str:
    dry, closed = row["dry_run"][row["fullest"]], row["closed_form"][row["fullest"]]
    parts = " ".join(f"{p.name.lower()} {dry[p] / 1e9:.2f}/{closed[p] / 1e9:.2f}" for p in Purpose)
    return (
        f"{row['name']}: {dry['peak'] / 1e9:.2f} GB at {row['fullest']} in {dry['moment']}, closed form "
        f"{closed['peak'] / 1e9:.2f} in {closed['moment']}; error {row['error']:+.1%}, of a place "
        f"{row['largest_error_of_a_place']:+.1%}; {parts}"
    )


if __name__ == "__main__":
    main()
