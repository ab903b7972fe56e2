"""The numbers and tables of the report, computed from a run's log and already written for people.

Training time is the sum of the recorded steps' own time, so what a killed process lost and the pause before a
resume are not in it.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from urllib.parse import quote

from glmforge.observe.metrics import Record
from glmforge.observe.run import RunLog
from glmforge.observe.units import format_bytes, format_count, format_duration

_FILES = {
    "config.yaml": "effective configuration",
    "run.json": "code revision, library versions and machine of the first start",
    "metrics.jsonl": "one record per logging step",
    "evaluation.jsonl": "one record per evaluation and source",
    "events.jsonl": "starts, resumes and what else happened",
    "checkpoints": "checkpoints, one directory per step",
    "tensorboard": "the metrics for TensorBoard",
}


_MAX_SOURCE_TILES = 3


class Tile(NamedTuple):
    """A headline number."""

    label: str
    value: str
    unit: str = ""


class Column(NamedTuple):
    title: str
    number: bool = False


class Cell(NamedTuple):
    text: str
    link: str = ""


class Table(NamedTuple):
    """A table; each row pairs its columns with their cells."""

    title: str
    columns: Sequence[Column]
    rows: list[list[tuple[Column, Cell]]]


@dataclass(frozen=True)
class Summary:
    """What the report says in words and numbers."""

    name: str
    lead: str
    tiles: list[Tile]
    tables: list[Table]
    facts: dict[str, str]
    config: str


def summarize(run: RunLog, *, report_dir: Path, facts: Mapping[str, str]) -> Summary:
    """The report's words and numbers; links are relative to `report_dir`, `facts` come first in theirs."""
    tables = (_phases(run), _last_evaluation(run), _events(run), _files(run, report_dir))
    return Summary(
        name=str(run.info.get("name", run.directory.root.name)),
        lead=_lead(run),
        tiles=_tiles(run),
        tables=[table for table in tables if table.rows],
        facts={**facts, **_facts(run)},
        config=run.config_text,
    )


def training_seconds(metrics: Iterable[Record], *, after_step: int = 0) -> float:
    """Time spent in the steps past `after_step`; a record speaks for the steps since the one before it."""
    seconds, previous = 0.0, after_step
    for record in metrics:
        seconds += record.get("step_seconds", 0.0) * (record["step"] - previous)
        previous = record["step"]
    return seconds


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
        parts.append(f"started {_clock(run.info['started'])}")
    return " · ".join(parts)


def _tiles(run: RunLog) -> list[Tile]:
    tiles = [Tile("Tokens trained", format_count(run.metrics[-1]["tokens"])), *_loss_tiles(run)]
    if any("step_seconds" in record for record in run.metrics):
        tiles.append(Tile("Training time", format_duration(training_seconds(run.metrics))))
    speeds = _values(run.metrics, "tokens_per_second")
    if speeds:
        tiles.append(Tile("Median throughput", format_count(median(speeds)), "tokens/s"))
    mfu = _values(run.metrics, "mfu")
    if mfu:
        tiles.append(Tile("Median MFU", f"{100 * median(mfu):.1f}", "% of peak FLOP/s"))
    violation = _values(run.metrics, "max_violation_max")
    if violation:
        tiles.append(Tile("Busiest expert", f"{1 + violation[-1]:.2f}×", "its share, last step"))
    return tiles


def _loss_tiles(run: RunLog) -> list[Tile]:
    tiles = []
    losses = _values(run.metrics, "loss")
    if losses:
        tiles.append(Tile("Training loss", f"{losses[-1]:.3f}", _with_first(losses, "nats/token", ".2f")))
    evaluations = [record for record in run.evaluations if "bits_per_byte" in record]
    for source in sorted({record["source"] for record in evaluations})[:_MAX_SOURCE_TILES]:
        held_out = [record["bits_per_byte"] for record in evaluations if record["source"] == source]
        tiles.append(Tile(f"Held-out {source}", f"{held_out[-1]:.3f}", _with_first(held_out, "bits/byte", ".2f")))
    return tiles


def _with_first(values: Sequence[float], unit: str, spec: str) -> str:
    return f"{unit}, from {values[0]:{spec}}" if len(values) > 1 else unit


def _phases(run: RunLog) -> Table:
    titles = (
        "Steps",
        "Tokens",
        "Loss, first → last",
        "Learning rate, first → last",
        "Tokens/s, median",
        "Time",
    )
    columns = (Column("Phase"), *(Column(title, number=True) for title in titles))
    rows: list[list[str | Cell]] = []
    before: Record = {"step": 0, "tokens": 0}
    for name, group in groupby(run.metrics, key=lambda record: str(record.get("phase", "training"))):
        records = list(group)
        last = records[-1]
        speeds = _values(records, "tokens_per_second")
        rows.append(
            [
                name,
                f"{last['step'] - before['step']:,}",
                format_count(last["tokens"] - before["tokens"]),
                _span(_values(records, "loss"), ".3f"),
                _span(_values(records, "lr"), ".1e"),
                format_count(median(speeds)) if speeds else "",
                format_duration(training_seconds(records, after_step=before["step"])),
            ]
        )
        before = last
    return _table("Phases", columns, rows)


def _last_evaluation(run: RunLog) -> Table:
    titles = ("Step", "Bits per byte", "Nats per token", "Tokens", "Bytes", "MTP acceptance")
    columns = (Column("Source"), *(Column(title, number=True) for title in titles))
    numbers = (
        ("step", ","),
        ("bits_per_byte", ".4f"),
        ("nll", ".4f"),
        ("num_tokens", ","),
        ("num_bytes", ","),
        ("mtp_acceptance", ".1%"),
    )
    newest = {record["source"]: record for record in run.evaluations}
    rows = [
        [source, *(format(record[name], spec) if name in record else "" for name, spec in numbers)]
        for source, record in newest.items()
    ]
    return _table("Last evaluation", columns, rows)


def _events(run: RunLog) -> Table:
    columns = (Column("Time (UTC)"), Column("After step", number=True), Column("Event"), Column("Detail"))
    rows = [[_clock(e["time"]), f"{e['step']:,}", e["event"], e.get("detail", "")] for e in run.events]
    return _table("Events", columns, rows)


def _files(run: RunLog, report_dir: Path) -> Table:
    columns = (Column("File"), Column("What it holds"), Column("Size", number=True))
    root = run.directory.root
    top = [p for p in sorted(root.iterdir()) if not p.name.startswith(".") and p != run.directory.report]
    saved = sorted(run.directory.checkpoints.glob("step-*"))
    rows: list[list[str | Cell]] = []
    for path in sorted([*top, *saved]):
        name = path.relative_to(root).as_posix() + ("/" if path.is_dir() else "")
        meaning = "checkpoint" if path in saved else _FILES.get(path.name, "")
        link = quote(Path(os.path.relpath(path, report_dir)).as_posix())
        rows.append([Cell(name, link), meaning, format_bytes(_size(path))])
    return _table("Files", columns, rows)


def _facts(run: RunLog) -> dict[str, str]:
    machine = run.info.get("machine", {})
    gpus = [f"{gpu['name']} ({format_bytes(gpu['memory_bytes'])})" for gpu in machine.get("gpus", [])]
    versions = run.info.get("versions", {})
    facts = {
        "Processor": f"{machine['cpu']}, {machine['cores']} cores" if "cpu" in machine else "",
        "Memory": format_bytes(machine["memory_bytes"]) if "memory_bytes" in machine else "",
        "GPUs": ", ".join(f"{gpus.count(gpu)} × {gpu}" for gpu in dict.fromkeys(gpus)) or "none",
        "Ranks": " → ".join(str(size) for size, _ in groupby(_values(run.metrics, "world_size"))),
        "Operating system": str(machine.get("os", "")),
        "Versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "Code revision": str(run.info.get("git_revision") or "not in a git repository"),
    }
    return {label: value for label, value in facts.items() if value}


def _table(title: str, columns: Sequence[Column], rows: Iterable[Sequence[str | Cell]]) -> Table:
    cells = ([cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows)
    return Table(title, columns, [list(zip(columns, row, strict=True)) for row in cells])


def _values(records: Iterable[Record], name: str) -> list[Any]:
    return [record[name] for record in records if name in record]


def _span(values: Sequence[float], spec: str) -> str:
    if not values:
        return ""
    return f"{values[0]:{spec}} → {values[-1]:{spec}}" if len(values) > 1 else f"{values[0]:{spec}}"


def _clock(time: object) -> str:
    """'2026-03-01T12:00:05Z' -> '2026-03-01 12:00:05'."""
    return str(time).replace("T", " ").removesuffix("Z")


def _size(path: Path) -> int:
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return path.stat().st_size
