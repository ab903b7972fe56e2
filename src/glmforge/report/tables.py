"""The report's tables, each made from a run's log: phases, sources, evaluation, checkpoints, events, files.

Training time is the sum of the recorded steps' own time, so what a killed process lost and the pause before a
resume are not in it.
"""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import quote

from glmforge.observe.metrics import Record
from glmforge.observe.run import RunLog
from glmforge.observe.units import format_bytes, format_count, format_duration
from glmforge.report.overfitting import advice, find_overfitting, overfitting_table
from glmforge.report.page import Cell, Column, Table, make_table

_FILES = {
    "config.yaml": "effective configuration",
    "run.json": "code revision, library versions and machine of the first start",
    "metrics.jsonl": "one record per logging step",
    "evaluation.jsonl": "one record per evaluation and source: loss and accuracy, answers",
    "samples.jsonl": "samples written at evaluations",
    "needles.jsonl": "retrieval from long texts",
    "benchmarks.jsonl": "benchmark scores during training",
    "rollouts": "answers that the policy was trained on, by step",
    "events.jsonl": "starts, resumes and other events",
    "time.jsonl": "where the time went",
    "checkpoints": "checkpoints, one directory per step",
    "tensorboard": "the metrics for TensorBoard",
}

_SHOWN_EVENTS = 8
"""Of each kind, the newest; of checkpoints that were saved only the newest of each tier."""


def make_tables(run: RunLog, report_dir: Path) -> list[Table]:
    """All tables that have rows; links are relative to `report_dir`."""
    tables = (
        _phases(run),
        _sources(run),
        _last_evaluation(run),
        _overfitting(run),
        _held_out_answers(run),
        _compared_with_start(run),
        _checkpoints(run),
        _events(run),
        _files(run, report_dir),
    )
    return [table for table in tables if table.rows]


def training_seconds(metrics: Iterable[Record], *, after_step: int = 0) -> float:
    """Time spent in the steps past `after_step`; a record covers the steps since the previous one."""
    seconds, previous = 0.0, after_step
    for record in metrics:
        seconds += record.get("step_seconds", 0.0) * (record["step"] - previous)
        previous = record["step"]
    return seconds


def _phases(run: RunLog) -> Table:
    titles = (
        "Steps",
        "Tokens",
        "Trained, median",
        "Loss, first → last",
        "Learning rate, first → last",
        "Tokens/s, median",
        "Time",
    )
    columns = ("Phase", *titles)
    rows: list[list[str | Cell]] = []
    before: Record = {"step": 0, "tokens": 0}
    for name, group in groupby(run.metrics, key=lambda record: str(record.get("phase", "training"))):
        records = list(group)
        last = records[-1]
        speeds = values_of(records, "tokens_per_second")
        trained = [r["trained_tokens"] / (r["batch_size"] * r["seq_len"]) for r in records if "trained_tokens" in r]
        rows.append(
            [
                name,
                f"{last['step'] - before['step']:,}",
                format_count(last["tokens"] - before["tokens"]),
                f"{median(trained):.1%}" if trained else "",
                _span(values_of(records, "loss") or values_of(records, "pair_loss"), ".3f"),
                _span(values_of(records, "lr"), ".1e"),
                format_count(median(speeds)) if speeds else "",
                format_duration(training_seconds(records, after_step=before["step"])),
            ]
        )
        before = last
    return make_table("Phases", columns, rows)


def _last_evaluation(run: RunLog) -> Table:
    titles = ("Step", "Bits per byte", "Nats per token", "Accuracy", "Tokens", "Bytes", "MTP acceptance")
    columns = ("Source", *titles)
    numbers = (
        ("step", ","),
        ("bits_per_byte", ".4f"),
        ("nll", ".4f"),
        ("accuracy", ".1%"),
        ("num_tokens", ","),
        ("num_bytes", ","),
    )
    newest = {record["source"]: record for record in run.evaluations if "num_answers" not in record}
    rows = [
        [source, *(format(record[name], spec) if name in record else "" for name, spec in numbers), _acceptance(record)]
        for source, record in newest.items()
    ]
    return make_table("Last evaluation", columns, rows)


def _overfitting(run: RunLog) -> Table:
    """With what to change, if anything."""
    findings = find_overfitting(run)
    table = overfitting_table(findings)
    return table._replace(note=" ".join([table.note, *(f"{sentence}." for sentence in advice(run, findings))]))


def _held_out_answers(run: RunLog) -> Table:
    """What the last answers to each source's held-out prompts are like."""
    newest = {record["source"]: record for record in run.evaluations if "num_answers" in record}
    columns = ("Source", "Step", "Answers", "Stopped", "Well-formed")
    rows = [
        [
            source,
            f"{record['step']:,}",
            f"{record['num_answers']:,}",
            f"{record['stopped']:.1%}",
            f"{record['well_formed']:.1%}",
        ]
        for source, record in newest.items()
    ]
    note = "Well-formed: reasoning, answer and tool calls are closed and in order, and hold no control token."
    return make_table("Answers to held-out prompts", columns, rows, note=note)


def _compared_with_start(run: RunLog) -> Table:
    """The last evaluation of each source beside the weights that the run started from."""
    newest = {record["source"]: record for record in run.evaluations if "bits_per_byte_at_start" in record}
    columns = ("Source", "Step", "Initial weights, bits per byte", "Now", "Change")
    rows = [
        [
            source,
            f"{record['step']:,}",
            f"{record['bits_per_byte_at_start']:.4f}",
            f"{record['bits_per_byte']:.4f}",
            f"{record['bits_per_byte_change']:+.4f}",
        ]
        for source, record in newest.items()
    ]
    note = "On text like the initial weights' training data, a change above 0 means forgetting."
    return make_table("Compared with the initial weights", columns, rows, note=note)


def _acceptance(record: Record) -> str:
    """'61.0 %', or of each depth in turn."""
    one = [record["mtp_acceptance"]] if "mtp_acceptance" in record else []
    return " / ".join(f"{share:.1%}" for share in record.get("mtp_acceptance_by_depth", one))


def _sources(run: RunLog) -> Table:
    """Tokens and epochs from the last record, loss from the first that has one to the last."""
    titles = ("Label tokens", "Share", "Epochs", "Loss, first → last")
    columns = ("Source", *titles)
    tokens: dict[str, float] = next(iter(values_of(reversed(run.metrics), "source_tokens")), {})
    epochs: dict[str, float] = next(iter(values_of(reversed(run.metrics), "source_epochs")), {})
    losses = values_of(run.metrics, "source_loss")
    rows = [
        [
            name,
            format_count(count),
            f"{count / sum(tokens.values()):.1%}",
            f"{epochs[name]:.3g}" if name in epochs else "",
            _span([loss[name] for loss in losses if name in loss], ".3f"),
        ]
        for name, count in sorted(tokens.items(), key=lambda item: -item[1])
    ]
    return make_table("Sources", columns, rows)


def _checkpoints(run: RunLog) -> Table:
    """What saving has cost, of the saves that had ended at the last record."""
    titles = (
        "Saved",
        "Failed",
        "Written",
        "Training waited",
        "of its time",
        "Time until on disk, total",
        "Bandwidth",
    )
    happened = Counter(event["event"] for event in run.events)
    blocked, seconds, written = (
        sum(values_of(run.metrics, f"checkpoint_{name}")) for name in ("seconds_blocked", "seconds_total", "bytes")
    )
    if not written and not happened["save failed"]:
        return make_table("Checkpoints", (), [])
    trained = training_seconds(run.metrics)
    row = [
        f"{happened['saved']:,}",
        f"{happened['save failed']:,}",
        format_bytes(written),
        format_duration(blocked),
        f"{blocked / trained:.2%}" if trained else "",
        format_duration(seconds),
        f"{format_bytes(written / seconds)}/s" if seconds else "",
    ]
    return make_table("Checkpoints", [Column(title, number=True) for title in titles], [row])


def _events(run: RunLog) -> Table:
    """In order; of kinds that happen all the time the newest, below a line that counts those before."""
    columns = (Column("Time (UTC)"), Column("After step", number=True), Column("Event"), Column("Detail"))
    kinds = [_kind(event) for event in run.events]
    left, earlier = Counter(kinds), Counter[str]()
    rows = []
    for event, kind in zip(run.events, kinds, strict=True):
        left[kind] -= 1
        shown = 1 if event["event"] == "saved" else _SHOWN_EVENTS
        if left[kind] >= shown:
            earlier[kind] += 1
            continue
        if earlier[kind]:
            name, first = f"{event['event']} ×{earlier[kind]:,}", run.events[kinds.index(kind)]
            what = f"{kind.removeprefix(event['event']).strip()} since step {first['step']:,}; see events.jsonl".strip()
            rows.append(["", "", name, f"earlier, {what}"])
            del earlier[kind]
        rows.append([clock_words(event["time"]), f"{event['step']:,}", event["event"], event.get("detail", "")])
    return make_table("Events", columns, rows)


def _kind(event: Record) -> str:
    """What an event counts among; the detail of a save begins with its tier."""
    tier = str(event.get("detail", "")).split(",")[0] if event["event"] == "saved" else ""
    return f"{event['event']} {tier}".strip()


def _files(run: RunLog, report_dir: Path) -> Table:
    columns = (Column("File"), Column("Contents"), Column("Size", number=True))
    root = run.directory.root
    top = [p for p in sorted(root.iterdir()) if not p.name.startswith(".") and p != run.directory.report]
    saved = sorted(run.directory.checkpoints.glob("step-*"))
    rows: list[list[str | Cell]] = []
    for path in sorted([*top, *saved]):
        name = path.relative_to(root).as_posix() + ("/" if path.is_dir() else "")
        meaning = "checkpoint" if path in saved else _FILES.get(path.name, "")
        link = quote(Path(os.path.relpath(path, report_dir)).as_posix())
        rows.append([Cell(name, link), meaning, format_bytes(_size(path))])
    return make_table("Files", columns, rows)


def values_of(records: Iterable[Record], name: str) -> list[Any]:
    return [record[name] for record in records if name in record]


def _span(values: Sequence[float], spec: str) -> str:
    if not values:
        return ""
    return f"{values[0]:{spec}} → {values[-1]:{spec}}" if len(values) > 1 else f"{values[0]:{spec}}"


def clock_words(time: object) -> str:
    """'2026-03-01T12:00:05Z' -> '2026-03-01 12:00:05'."""
    return str(time).replace("T", " ").removesuffix("Z")


def _size(path: Path) -> int:
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return path.stat().st_size
