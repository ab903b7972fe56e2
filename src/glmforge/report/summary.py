"""What the report says besides its plots, computed from a run's log and already written for people.

The tables are `tables.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import median

from glmforge.observe.run import RunLog
from glmforge.observe.units import format_bytes, format_count, format_duration
from glmforge.report.page import Summary, Tile
from glmforge.report.tables import clock_words, make_tables, training_seconds, values_of

_MAX_SOURCE_TILES = 3
_TROUBLE = (
    ("skipped_samples", "Skipped", "samples, for loss spikes"),
    ("nonfinite_steps_total", "Not taken", "steps, not finite"),
)


@dataclass(frozen=True)
class RunSummary(Summary):
    """What the report says in words and numbers."""

    facts: dict[str, str]
    config: str


def summarize(run: RunLog, *, report_dir: Path, facts: Mapping[str, str]) -> RunSummary:
    """The report's words and numbers; links are relative to `report_dir`, `facts` come first in theirs."""
    return RunSummary(
        name=str(run.info.get("name", run.directory.root.name)),
        lead=_lead(run),
        tiles=_tiles(run),
        tables=make_tables(run, report_dir),
        facts={**facts, **_facts(run)},
        config=run.config_text,
    )


def _lead(run: RunLog) -> str:
    model = run.config.get("model", {})
    shape = ("num_hidden_layers", "hidden_size", "n_routed_experts", "num_experts_per_tok")
    parts = []
    if all(name in model for name in shape):
        layers, width, experts, active = (model[name] for name in shape)
        parts.append(f"GLM mixture of experts, {layers} layers of width {width}, {active} of {experts} experts active")
    num_steps = run.metrics[-1]["step"]
    parts.append(f"{num_steps:,} {'step' if num_steps == 1 else 'steps'}")
    if "started" in run.info:
        parts.append(f"started {clock_words(run.info['started'])}")
    return " · ".join(parts)


def _tiles(run: RunLog) -> list[Tile]:
    tiles = [Tile("Tokens trained", format_count(run.metrics[-1]["tokens"])), *_loss_tiles(run)]
    if any("step_seconds" in record for record in run.metrics):
        tiles.append(Tile("Training time", format_duration(training_seconds(run.metrics))))
    speeds = values_of(run.metrics, "tokens_per_second")
    if speeds:
        tiles.append(Tile("Median throughput", format_count(median(speeds)), "tokens/s"))
    mfu = values_of(run.metrics, "mfu")
    if mfu:
        tiles.append(Tile("Median MFU", f"{100 * median(mfu):.1f}", "% of peak FLOP/s"))
    violation = values_of(run.metrics, "max_violation_max")
    if violation:
        tiles.append(Tile("Busiest expert", f"{1 + violation[-1]:.2f}×", "its share, last step"))
    for name, label, unit in _TROUBLE:
        if run.metrics[-1].get(name):
            tiles.append(Tile(label, f"{run.metrics[-1][name]:,}", unit))
    return tiles


def _loss_tiles(run: RunLog) -> list[Tile]:
    tiles = []
    losses = values_of(run.metrics, "loss")
    if losses:
        tiles.append(Tile("Training loss", f"{losses[-1]:.3f}", _with_first(losses, "nats/token", ".2f")))
    rewards = values_of(run.metrics, "reward")
    if rewards:
        tiles.append(Tile("Reward", f"{rewards[-1]:.3f}", _with_first(rewards, "mean", ".3f")))
    if pair_losses := values_of(run.metrics, "pair_loss"):
        tiles.append(Tile("Training loss", f"{pair_losses[-1]:.3f}", _with_first(pair_losses, "nats/pair", ".2f")))
    compared = {record["source"]: record for record in run.evaluations if "held_out_pair_accuracy" in record}
    for source in sorted(compared)[:_MAX_SOURCE_TILES]:
        low, high = (compared[source][f"held_out_pair_accuracy_{end}"] for end in ("low", "high"))
        share = f"{compared[source]['held_out_pair_accuracy']:.1%}"
        tiles.append(Tile(f"Held-out {source}", share, f"of pairs, {low:.0%} to {high:.0%}"))
    evaluations = [record for record in run.evaluations if "bits_per_byte" in record]
    for source in sorted({record["source"] for record in evaluations})[:_MAX_SOURCE_TILES]:
        held_out = [record["bits_per_byte"] for record in evaluations if record["source"] == source]
        tiles.append(Tile(f"Held-out {source}", f"{held_out[-1]:.3f}", _with_first(held_out, "bits/byte", ".2f")))
    return tiles


def _with_first(values: Sequence[float], unit: str, spec: str) -> str:
    return f"{unit}, from {values[0]:{spec}}" if len(values) > 1 else unit


def _facts(run: RunLog) -> dict[str, str]:
    machine = run.info.get("machine", {})
    gpus = [f"{gpu['name']} ({format_bytes(gpu['memory_bytes'])})" for gpu in machine.get("gpus", [])]
    versions = run.info.get("versions", {})
    facts = {
        "Processor": f"{machine['cpu']}, {machine['cores']} cores" if "cpu" in machine else "",
        "Memory": format_bytes(machine["memory_bytes"]) if "memory_bytes" in machine else "",
        "GPUs": ", ".join(f"{gpus.count(gpu)} × {gpu}" for gpu in dict.fromkeys(gpus)) or "none",
        "Ranks": " → ".join(str(size) for size, _ in groupby(values_of(run.metrics, "world_size"))),
        "Operating system": str(machine.get("os", "")),
        "Versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "Code revision": str(run.info.get("git_revision") or "not in a git repository"),
    }
    return {label: value for label, value in facts.items() if value}
