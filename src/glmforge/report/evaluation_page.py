"""The page of an evaluation: scores, comparison, long context, failures with examples. It needs nothing else.

Everything comes from result directories (`glmforge.evaluate.result`). Prompts and replies are text from outside: the
template escapes all of it, and long ones are shown from both ends.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glmforge.errors import DataError
from glmforge.evaluate.compare import Compared, compare_results, not_compared
from glmforge.evaluate.failures import KINDS, Failures, failures_of
from glmforge.evaluate.official import official_of
from glmforge.evaluate.result import Item, Result, Score, Written, changed, flat, format_score, read_result
from glmforge.extras import needed_for
from glmforge.observe.record_files import read_jsonl
from glmforge.observe.run import write_text
from glmforge.observe.units import format_count
from glmforge.report.page import Column, Summary, Table, Tile, check_suffix, make_table, page_template
from glmforge.report.safety import safety_table

PAGE, NEEDLES = "page.html", "needles.jsonl"
_SHOWN_FLIPS, _SHOWN_OF_KIND, _SHOWN_GROUPS = 6, 3, 15
_END = 1200  # characters of a long text that are shown of each end

_Example = tuple[str, Item, list[tuple[str, Item, Written | None]]]
"""Title, item, and beside the right answer what models made of it: whose, which item, which reply to it."""


def write_page(
    directory: Path, out: Path | None = None, *, baseline: Path | None = None, benchmark: str | None = None
) -> Path:
    """The page of a result, of all its benchmarks or of one; compared with a baseline if there is one.

    Args:
        out: `PAGE` in the directory by default.

    Raises:
        DataError: a result is missing or damaged, or does not have the benchmark.
        MissingPackageError: there are needle records, and matplotlib is not installed.
    """
    out = out or directory / PAGE
    check_suffix(out, "--out")
    result, failures = read_result(directory), failures_of(directory, benchmark)
    scores = [score for score in result.scores if benchmark in (None, score.benchmark)]
    parts: dict[str, Any] = {"comparisons": [], "comparison": None, "notes": []}
    if baseline is not None:
        found = compare_results(baseline, directory)
        notes = [
            f"Asked differently: {name} was {old}, is {new}."
            for name, (old, new) in changed(read_result(baseline).settings, result.settings).items()
        ]
        notes += [f"{line}." for line in not_compared(baseline, directory, found)]
        table = comparison_table(found, f"Compared with {baseline}")
        parts = {"comparisons": [(one, _flipped(one)) for one in found], "comparison": table, "notes": notes}
    content = page_template("evaluation.html").render(
        summary=_summary(result),
        scores=[(score, official_of(score.benchmark), _remarks(score)) for score in scores],
        published=_published(scores),
        safety=safety_table(directory),
        figures=_figures(directory),
        clipped=_clipped,
        target=_target,
        failures=[(one, _groups(one), _examples(one)) for one in failures],
        facts=flat(result.settings)
        | {f"version of {name}": value for name, value in result.versions.items()}
        | {f"questions of {score.benchmark}": score.fingerprint for score in scores},
        **parts,
    )
    write_text(out, content.encode(errors="replace").decode())
    return out


def comparison_table(found: Sequence[Compared], title: str = "new minus old, in points") -> Table:
    """A row for each benchmark: difference, interval, test, finished scores and cut shares, items that flipped."""
    rows = []
    for one in found:
        test, by, old, new = one.comparison, one.comparison.difference, one.old.text, one.new.text
        interval = f"{_points(one, by.low):+} to {_points(one, by.high):+}" if by.low == by.low else ""
        rows.append(
            [
                one.benchmark,
                one.verdict,
                f"{by.num_items:,}",
                f"{format_score(one.old_score)} → {format_score(one.new_score)}",
                f"{_points(one, by.mean):+}",
                interval,
                "< 0.001" if test.p_value < 0.001 else f"{test.p_value:.3f}",
                f"{old.finished} → {new.finished}" if new.finished else "",
                f"{old.cut} → {new.cut}" if new.cut else "",
                f"{test.num_better:,}",
                f"{test.num_worse:,}",
                f"{_points(one, test.detectable)}" if test.detectable == test.detectable else "",
            ]
        )
    numbers = ["Items", "Score", "Difference", "95 % interval", "p", "Finished", "Cut", "Better", "Worse", "Detectable"]
    note = (
        "New minus old in points, over the items that both have. “Detectable”: the smallest true difference that this "
        "number of items shows with a probability of 80 %. Finished and cut are of all items."
    )
    columns: list[str | Column] = ["Benchmark", Column("Verdict"), *numbers]
    return make_table(title, columns, rows, note=note)


def _points(one: Compared, difference: float) -> float:
    """A difference of shares in points; of other measures as it is."""
    are_shares = 0 <= one.old_score <= 1 and 0 <= one.new_score <= 1
    return round(100 * difference, 1) if are_shares else round(difference, 3)


def _published(scores: Sequence[Score]) -> Table | None:
    rows = [
        [one.benchmark, one.model, format_score(one.score), one.settings, one.source]
        for one in official_of(*(score.benchmark for score in scores))
    ]
    columns: list[str | Column] = ["Benchmark", Column("Model"), "Score", Column("Settings"), Column("Source")]
    note = "Measured by others, with other prompts, budgets and samples: for orientation, not for comparison."
    return make_table("Published", columns, rows, note=note) if rows else None


def _summary(result: Result) -> Summary:
    scores = result.scores
    replies = sum(score.num_items * score.num_samples for score in scores if score.num_finished is not None)
    num_cut = sum(score.cut_share * score.num_items * score.num_samples for score in scores)
    tiles = [
        Tile("Benchmarks", f"{len(scores)}"),
        Tile("Items", f"{sum(score.num_items for score in scores):,}"),
        Tile("Tokens", format_count(sum(score.num_tokens for score in scores)), "written and scored"),
        *([Tile("Replies cut", f"{num_cut / replies:.0%}", f"of {replies:,}")] if replies else []),
    ]
    step = "" if result.step is None else f"step {result.step:,}"
    lead = " · ".join(filter(None, (step, result.weights and f"weights {result.weights[:12]}", result.created)))
    return Summary(result.model, lead, tiles, [])


def _remarks(score: Score) -> list[str]:
    """What a reader of the score has to know besides."""
    found = [f"no score: {score.refused}"] if score.refused else []
    if score.chance and score.interval and score.interval.low <= score.chance <= score.interval.high:
        found.append("the interval contains the score of guessing")
    if score.num_truncated:
        found.append(f"{score.num_truncated:,} prompts were too long for the model and lost their beginning")
    return found + [f"{name} {format_score(value)}" for name, value in score.extra.items()]


def _groups(one: Failures) -> list[Table]:
    """Scores and kinds of failure by subject, level and length."""
    kinds, tables = [kind for kind in KINDS if one.kinds[kind]], []
    for name, groups in (("subject", one.by_subject), ("level", one.by_level), ("prompt length", one.by_length)):
        rows = [
            [
                group.name or "none given",
                f"{group.num_items:,}",
                format_score(group.score),
                *(f"{group.kinds[kind]:,}" for kind in kinds),
            ]
            for group in groups[:_SHOWN_GROUPS]
        ]
        more = f": the first {_SHOWN_GROUPS} of {len(groups)}" if groups[_SHOWN_GROUPS:] else ""
        tables += [make_table(f"By {name}{more}", ["", "Items", "Score", *kinds], rows)] if rows else []
    return tables


def _flipped(one: Compared) -> list[_Example]:
    return [
        (
            f"{word}: {_name(pair.new)}, {pair.old.score:.2f} → {pair.new.score:.2f}",
            pair.new,
            [("Old", pair.old, _worst(pair.old)), ("New", pair.new, _worst(pair.new))],
        )
        for word, pairs in (("Worse", one.worse), ("Better", one.better))
        for pair in pairs[:_SHOWN_FLIPS]
    ]


def _examples(one: Failures) -> list[_Example]:
    return [
        (f"{kind}: {_name(found.item)}", found.item, [("The model", found.item, found.reply)])
        for kind in KINDS
        for found in [found for found in one.failures if found.kind == kind][:_SHOWN_OF_KIND]
    ]


def _worst(item: Item) -> Written | None:
    return min(item.written, key=lambda one: one.score, default=None)


def _name(item: Item) -> str:
    return f"item {item.number}" + (f" ({item.subject})" if item.subject else "")


def _target(item: Item) -> str:
    """The right answer; of a choice that is named by its number, its text."""
    return {str(place): one.text.strip() for place, one in enumerate(item.choices)}.get(item.target, item.target)


def _clipped(text: str) -> str:
    left_out = len(text) - 2 * _END
    return f"{text[:_END]}\n… {left_out:,} characters …\n{text[-_END:]}" if left_out > 0 else text


def _figures(directory: Path) -> list[Any]:
    """Drawings of the records of `evaluate needles --out`, if they lie in the directory."""
    path = directory / NEEDLES
    if not path.is_file():
        return []
    with needed_for("drawing needle tests"):
        from glmforge.report.figures_needles import needle_map, perplexity_by_position
    records = read_jsonl(path)
    try:
        drawn = needle_map([one for one in records if "needle_task" in one]), perplexity_by_position(records)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: not the records of 'glmforge evaluate needles --out' ({error})") from None
    return [figure for figure in drawn if figure is not None]
