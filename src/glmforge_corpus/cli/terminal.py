"""What a corpus pipeline prints: the progress of its steps, on stderr, and a summary; the report has the rest."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console

if TYPE_CHECKING:
    from glmforge_corpus.pipeline.run import StepProgress
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from glmforge.observe.units import counted, format_bytes


@contextmanager
def step_progress(console: Console | None = None) -> "Iterator[Callable[[StepProgress], None]]":
    """What shows how far the steps of a pipeline are: a bar for each, or a line at its end and for each tenth before.

    Steps of less than ten tasks have the line at the end alone.

    Raises:
        KeyboardInterrupt: of the body, with what the user can do then.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = console or Console(stderr=True)
    shown: dict[str, Any] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bars = Progress(*columns, console=console)

    def show(step: "StepProgress") -> None:
        name = step.stage if step.step == "documents" else f"{step.stage}: {step.step}"
        if not console.is_terminal:
            tenth = 10 * step.done // max(step.total, 1)
            if tenth > shown.get(name, 0) and (step.total >= 10 or step.done == step.total):
                shown[name] = tenth
                line = f"{name}: {step.done:,} of {step.total:,} tasks"
                console.print(line, markup=False, highlight=False, soft_wrap=True)
            return
        bars.start()  # not before: a run that is refused draws nothing
        if name not in shown:
            shown[name] = bars.add_task(name)
        bars.update(shown[name], completed=step.done, total=step.total)

    try:
        yield show
    except KeyboardInterrupt:
        raise KeyboardInterrupt("run it again to resume") from None
    finally:
        if bars.live.is_started:
            bars.stop()


def outcome(report: dict[str, Any], output: Path, page: Path) -> Iterator[str]:
    """What a run did: a line or two per stage, what could not be read, and where everything is.

    Args:
        report: as `run_pipeline` returns it.
        output: directory of the run.
        page: the HTML report.
    """
    for stage in report["stages"]:
        yield from _lines(stage)
    unreadable = _unreadable(report)
    if unreadable:
        yield f"{output / 'quarantine.jsonl'}: {unreadable}"
    if report["stages"][-1]["statistics"]["written"]["documents"]:
        yield f"{output / 'documents'}: the documents; {page}: the report"


def _unreadable(report: dict[str, Any]) -> str:
    """How many records and whole files could not be read, and for each of the main reasons where one of them is."""
    counts, places = Counter[str](), dict[str, str]()
    for stage in report["stages"]:
        for reason, count in stage["statistics"]["quarantined"].items():
            counts[reason] += count
            places[reason] = stage["statistics"]["samples"][reason][0]["id"]
    files = sum(counts[reason] for reason in _OF_FILES)
    amounts = ((counts.total() - files, "record"), (files, "file"))
    what = " and ".join(counted(number, noun) for number, noun in amounts if number)
    return what and f"{what} that could not be read: " + _largest(counts, places)


_OF_FILES = (
    "damaged file",
    "empty file",
    "damaged archive",
    "unsuitable file",
    "too large for memory",
    "killed its worker",
)


def _lines(stage: dict[str, Any]) -> Iterator[str]:
    """What a stage did, in a line, and what a stage that compares documents found, in another."""
    statistics, kind = stage["statistics"], stage["kind"]
    removed = {reason.removeprefix(f"{kind}: "): flow["documents"] for reason, flow in statistics["removed"].items()}
    written = statistics["written"]
    yield f"{kind}: {counted(written['documents'], 'document')}, {format_bytes(written['bytes'])}" + (
        f"; removed {sum(removed.values()):,}: {_largest(removed)}" if removed else ""
    )
    if kind in _TELLING:
        counts = {name: count for name, count in statistics["counts"].items() if count and name not in _ADVICE}
        found = [f"{name.removeprefix(kind + ': ')} {count:,}" for name, count in counts.items()]
        for details in stage["details"]:
            sets = details.get("sets", [])
            found += [f"{part['items_found']:,} of {part['items']:,} items of {part['name']}" for part in sets]
        if found or not removed:
            yield "    found: " + (", ".join(found) or "nothing")
    for name, advice in _ADVICE.items():
        if count := statistics["counts"].get(name):
            yield f"    {count:,} of {counted(statistics['read']['documents'], 'document')} {advice}"


_TELLING = ("exact", "minhash", "substring", "semantic", "decontaminate", "hold_out", "repeat", "augment")
_ADVICE = {
    "minhash: documents too short to judge": "too short to judge: changing one word in the middle of a copy puts it "
    "below the threshold; lower the threshold or n to find such copies"
}
"""Counts that are reported in their own sentence."""

_NAMED_REASONS = 4


def _largest(counts: Mapping[str, int], places: Mapping[str, str] | None = None) -> str:
    """The most frequent reasons with their counts and one place of each, and how many other reasons there are."""
    ordered = sorted(counts, key=lambda reason: (-counts[reason], reason))
    named = [
        f"{reason} {counts[reason]:,}" + (f" (at {places[reason]})" if places else "")
        for reason in ordered[:_NAMED_REASONS]
    ]
    others = len(ordered) - len(named)
    return ", ".join(named) + (f", and {counted(others, 'more reason')}" if others else "")
