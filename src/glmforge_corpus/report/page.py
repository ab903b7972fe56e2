"""The report of a corpus pipeline as a page: what came in, what each stage removed and why, what came out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from glmforge.config.tree import dump
from glmforge.extras import needed_for
from glmforge.observe.run import write_text
from glmforge.observe.units import format_bytes, format_count, format_duration
from glmforge.report.page import Summary, Table, Tile, make_table, page_template

_SHOWN_ROWS = 40


class _Sample(NamedTuple):
    reason: str
    excerpts: list[dict[str, str]]


@dataclass(frozen=True)
class _CorpusSummary(Summary):
    samples: list[_Sample]


def write_corpus_page(report: dict[str, Any], out: Path) -> Path:
    """Write the page of a `report.json` to `out`.

    Returns `out`. Raises `MissingPackageError` if matplotlib is not installed.
    """
    with needed_for(f"{out}: drawing"):
        from glmforge_corpus.report.figures import draw_corpus_figures
    page = page_template("corpus.html", "glmforge_corpus.report")
    figures = draw_corpus_figures(report["stages"])
    write_text(out, page.render(summary=_summarize(report), figures=figures, config=dump(report["pipeline"])))
    return out


def _summarize(report: dict[str, Any]) -> _CorpusSummary:
    stages = report["stages"]
    last = stages[-1]["statistics"]
    return _CorpusSummary(
        name=report["name"],
        lead=" → ".join(stage["kind"] for stage in stages),
        tiles=_tiles(stages),
        tables=[
            _flow(stages),
            _removed(stages),
            _rules(stages),
            _quarantined(stages),
            _groups("Languages", "language", last["languages"]),
            _groups("Sources", "source", last["sources"]),
            _counts(stages),
        ],
        samples=list(_samples(stages)),
    )


def _tiles(stages: Sequence[dict[str, Any]]) -> list[Tile]:
    first, last = stages[0]["statistics"], stages[-1]["statistics"]
    read = first["read"]["bytes"] or first["written"]["bytes"]
    quarantined = sum(sum(stage["statistics"]["quarantined"].values()) for stage in stages)
    seconds = sum(stage["statistics"]["seconds"] for stage in stages)
    return [
        Tile("Documents", format_count(last["written"]["documents"])),
        Tile("Text", format_bytes(last["written"]["bytes"])),
        Tile("Of the input", _share(last["written"]["bytes"], read), "of the text"),
        Tile("Quarantined", f"{quarantined:,}", "records"),
        Tile("CPU time", format_duration(seconds)),
    ]


def _flow(stages: Sequence[dict[str, Any]]) -> Table:
    rows = []
    for stage in stages:
        s = stage["statistics"]
        removed = sum(flow["documents"] for flow in s["removed"].values())
        rate = s["read"]["bytes"] / s["seconds"] / 1e6 if s["seconds"] else 0.0
        rows.append(
            [
                stage["description"],
                f"{s['read']['documents']:,}",
                f"{removed:,}",
                f"{s['written']['documents']:,}",
                format_bytes(s["written"]["bytes"]),
                format_duration(s["seconds"]),
                f"{rate:.1f}",
            ]
        )
    columns = ["stage", "documents in", "removed", "documents out", "text out", "CPU time", "MB per CPU second"]
    return make_table("Stages", columns, rows)


def _removed(stages: Sequence[dict[str, Any]]) -> Table:
    rows = [
        [
            stage["kind"],
            reason,
            f"{flow['documents']:,}",
            _share(flow["documents"], _into(stage)),
            format_bytes(flow["bytes"]),
        ]
        for stage in stages
        for reason, flow in _largest(stage["statistics"]["removed"], lambda flow: flow["documents"])
    ]
    note = "Removed documents, by the first reason."
    columns = ["stage", "reason", "documents", "share of the stage's", "text"]
    return make_table("Removed", columns, rows, note=note)


def _rules(stages: Sequence[dict[str, Any]]) -> Table:
    rows = [
        [stage["kind"], rule, f"{count:,}", _share(count, _into(stage))]
        for stage in stages
        for rule, count in _largest(stage["statistics"]["failed"], lambda count: count)
        if count
    ]
    note = "Documents that fail a rule, even if another rule was the reason."
    return make_table("Rules", ["stage", "rule", "documents", "share of the stage's"], rows, note=note)


def _quarantined(stages: Sequence[dict[str, Any]]) -> Table:
    rows = [
        [stage["kind"], reason, f"{count:,}"]
        for stage in stages
        for reason, count in sorted(stage["statistics"]["quarantined"].items())
    ]
    note = "Unreadable records; quarantine.jsonl lists them."
    return make_table("Quarantine", ["stage", "reason", "records"], rows, note=note)


def _counts(stages: Sequence[dict[str, Any]]) -> Table:
    rows = [
        [stage["kind"], name, f"{count:,}"]
        for stage in stages
        for name, count in sorted(stage["statistics"]["counts"].items())
        if count
    ]
    return make_table("Counters", ["stage", "what", "count"], rows)


def _groups(title: str, column: str, groups: dict[str, dict[str, int]]) -> Table:
    total = sum(flow["bytes"] for flow in groups.values())
    rows = [
        [name, f"{flow['documents']:,}", format_bytes(flow["bytes"]), _share(flow["bytes"], total)]
        for name, flow in _largest(groups, lambda flow: flow["bytes"])
    ]
    return make_table(title, [column, "documents", "text", "share of the text"], rows, note="Of the output.")


def _samples(stages: Sequence[dict[str, Any]]) -> Iterable[_Sample]:
    for stage in stages:
        for reason, samples in sorted(stage["statistics"]["samples"].items()):
            if samples:
                yield _Sample(f"{stage['kind']}: {reason}", [{"id": s["id"], "text": s["text"]} for s in samples])


def _into(stage: dict[str, Any]) -> int:
    return int(stage["statistics"]["read"]["documents"])


def _largest(values: dict[str, Any], size: Any) -> list[tuple[str, Any]]:
    return sorted(values.items(), key=lambda item: (-size(item[1]), item[0]))[:_SHOWN_ROWS]


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.2%}" if whole else "–"
