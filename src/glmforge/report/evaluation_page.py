"""The page of an evaluation: scores, comparison, long context, failures with examples. It needs nothing else.

Everything comes from result directories (`glmforge.evaluate.result`). Prompts and replies are text from outside: the
template escapes all of it, and long ones are shown from both ends.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from glmforge.errors import DataError
from glmforge.evaluate.compare import Compared, compare_results
from glmforge.evaluate.failures import KINDS, Failures, failures_of, reasons
from glmforge.evaluate.official import official_of
from glmforge.evaluate.result import Item, Result, Score, Written, read_result
from glmforge.extras import needed_for
from glmforge.observe.record_files import read_jsonl
from glmforge.observe.run import write_text
from glmforge.observe.units import counted, format_count
from glmforge.report.page import Summary, Table, Tile, check_suffix, make_table, page_template

PAGE, NEEDLES = "page.html", "needles.jsonl"
_SHOWN_FLIPS, _SHOWN_OF_KIND = 6, 3
_END = 1200
"""Characters of a long text that are shown of each end."""


class Side(NamedTuple):
    """What one model made of an item; `whole` is all that it wrote, where that is more than the answer."""

    title: str
    text: str
    verdict: str = ""
    whole: str = ""


class Example(NamedTuple):
    title: str
    prompt: str
    sides: tuple[Side, ...]


def write_result_page(directory: Path, baseline: Path | None = None) -> Path:
    """Scores, failures and long context of a result, beside it; compared with a baseline if there is one.

    Raises:
        DataError: a result is missing or damaged.
        MissingPackageError: there are needle records, and matplotlib is not installed.
    """
    result = read_result(directory)
    scores = [(score, official_of(score.benchmark), _remarks(score)) for score in result.scores]
    parts = {"scores": scores, "figures": _figures(directory), "failures": failures_of(directory)}
    return _write(directory / PAGE, result, **parts, **(_compared(baseline, directory) if baseline else {}))


def write_comparison_page(old: Path, new: Path, out: Path) -> None:
    """The differences, why items fell, those that flipped side by side, and the failures of the new result."""
    _write(out, read_result(new), failures=failures_of(new), **_compared(old, new))


def write_failures_page(directory: Path, out: Path, benchmark: str | None = None) -> None:
    """The failures of a result, or of one of its benchmarks."""
    _write(out, read_result(directory), failures=failures_of(directory, benchmark))


def comparison_table(found: Sequence[Compared], title: str = "new minus old, in points") -> Table:
    """A row for each benchmark: difference, interval, test, finished scores and cut shares, items that flipped."""
    rows = []
    for one in found:
        test, by = one.comparison, one.comparison.difference
        finished = ["none" if row.finished_score is None else f"{row.finished_score:.1%}" for row in (one.old, one.new)]
        cut = [f"{row.cut_share:.1%}" for row in (one.old, one.new)]
        rows.append(
            [
                one.benchmark,
                one.verdict,
                f"{by.num_items:,}",
                f"{one.old_score:.1%} → {one.new_score:.1%}",
                f"{100 * by.mean:+.1f}",
                f"{100 * by.low:+.1f} to {100 * by.high:+.1f}" if by.low == by.low else "",
                "< 0.001" if test.p_value < 0.001 else f"{test.p_value:.3f}",
                *([" → ".join(finished), " → ".join(cut)] if one.new.num_finished is not None else ["", ""]),
                f"{test.num_better:,}",
                f"{test.num_worse:,}",
                f"{100 * test.detectable:.1f}" if test.detectable == test.detectable else "",
            ]
        )
    numbers = (
        "Items",
        "Score",
        "Difference",
        "95 % interval",
        "p",
        "Finished",
        "Cut",
        "Better",
        "Worse",
        "Can be seen",
    )
    columns = ("Benchmark", "Verdict", *numbers)
    note = (
        "New minus old in points, over the items that both have. “Can be seen”: the smallest true difference that so "
        "many items show with a probability of 80 %; a smaller one may be there. Finished and cut are of all items."
    )
    table = make_table(title, columns, rows, note=note)
    return table._replace(columns=[column._replace(number=column.title in numbers) for column in table.columns])


def explained(one: Compared) -> list[str]:
    """Why items fell and rose: kinds of failure, and the subjects that lost most."""
    found = [] if one.same_questions else ["the questions of the results differ: only common ones are compared"]
    for pairs, verb, when in ((one.worse, "fell", "new"), (one.better, "rose", "old")):
        kinds = reasons(getattr(pair, when) for pair in pairs)
        if kinds:
            words = ", ".join(f"{number:,} {kind}" for kind, number in kinds.most_common())
            found.append(f"{counted(len(pairs), 'item')} {verb}; their failures in the {when} result: {words}")
    lost: Counter[str] = Counter()
    for pair in (*one.worse, *one.better):
        lost[pair.new.subject] -= round(1000 * pair.change)
    worst = [f"{name} ({-number / 1000:+.1f} items)" for name, number in lost.most_common(3) if name and number > 0]
    return [*found, f"most is lost in {', '.join(worst)}"] if worst else found


def _write(out: Path, result: Result, **parts: Any) -> Path:
    check_suffix(out, "--out")
    replies = sum(score.num_items * score.num_samples for score in result.scores if score.num_finished is not None)
    num_cut = sum(score.cut_share * score.num_items * score.num_samples for score in result.scores)
    tiles = [
        Tile("Benchmarks", f"{len(result.scores)}"),
        Tile("Items", f"{sum(score.num_items for score in result.scores):,}"),
        Tile("Tokens", format_count(sum(score.num_tokens for score in result.scores)), "written and scored"),
        *([Tile("Replies cut", f"{num_cut / replies:.0%}", f"of {replies:,}")] if replies else []),
    ]
    step = "" if result.step is None else f"step {result.step:,}"
    lead = " · ".join(filter(None, (step, result.weights and f"weights {result.weights[:12]}", result.created)))
    content = page_template("evaluation.html").render(
        {name: [] for name in ("scores", "comparisons", "changed", "figures", "failures")}
        | {"summary": Summary(result.model, lead, tiles, []), "facts": _facts(result), "flipped": _flipped}
        | {"comparison_table": comparison_table, "explained": explained, "examples": _examples, "kinds": KINDS}
        | parts
    )
    write_text(out, content.encode(errors="replace").decode())
    return out


def _remarks(score: Score) -> list[str]:
    """What a reader of the score has to know besides."""
    found = [f"no score: {score.refused}"] if score.refused else []
    if score.chance and score.interval and score.interval.low <= score.chance <= score.interval.high:
        found.append("the interval contains the score of guessing")
    if score.num_truncated:
        found.append(f"{score.num_truncated:,} prompts were too long for the model and lost their beginning")
    values = (
        f"{name} {value:.1%}" if 0 <= value <= 1 else f"{name} {value:.3f}" for name, value in score.extra.items()
    )
    return [*found, *values]


def _compared(old: Path, new: Path) -> dict[str, Any]:
    before, after = (_flat(read_result(path).settings) for path in (old, new))
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    changed = [f"Asked differently: {name} was {before.get(name)}, is {after.get(name)}." for name in names]
    return {"comparisons": compare_results(old, new), "baseline": str(old), "changed": changed}


def _flipped(one: Compared) -> list[Example]:
    return [
        Example(
            f"{word}: {_name(pair.new)}, {pair.old.score:.2f} → {pair.new.score:.2f}",
            _clipped(pair.new.prompt),
            (_side(pair.old, "Old"), _side(pair.new, "New"), Side("Right", _target(pair.new))),
        )
        for word, pairs in (("Worse", one.worse), ("Better", one.better))
        for pair in pairs[:_SHOWN_FLIPS]
    ]


def _examples(one: Failures) -> list[Example]:
    shown = [failure for kind in KINDS for failure in [f for f in one.failures if f.kind == kind][:_SHOWN_OF_KIND]]
    return [
        Example(
            f"{failure.kind}: {_name(failure.item)}",
            _clipped(failure.item.prompt),
            (_side(failure.item, "The model", failure.reply), Side("Right", _target(failure.item))),
        )
        for failure in shown
    ]


def _side(item: Item, title: str, reply: Written | None = None) -> Side:
    """A reply (the first failed one unless it is given), or the choices with what the model chose."""
    if not item.written:
        lines = [
            f"{'→' if place == item.predicted else ' '} {one.text.strip()}  (log-likelihood {one.logprob:.2f})"
            for place, one in enumerate(item.choices)
        ]
        return Side(title, _clipped("\n".join(lines)), f"score {item.score:.2f}")
    reply = reply or min(item.written, key=lambda one: one.score)
    extracted = "nothing" if reply.extracted is None else f"“{_clipped(reply.extracted)}”"
    cut = "cut, " if reply.is_cut else ""
    verdict = f"extracted {extracted}; score {reply.score:.2f}; {cut}{reply.num_tokens:,} tokens"
    return Side(title, _clipped(reply.answer), verdict, "" if reply.text == reply.answer else _clipped(reply.text))


def _target(item: Item) -> str:
    """The right answer; of a choice that is named by its number, its text."""
    named = {str(place): one.text.strip() for place, one in enumerate(item.choices)}
    return _clipped(named.get(item.target, item.target))


def _name(item: Item) -> str:
    return f"item {item.number}" + (f" ({item.subject})" if item.subject else "")


def _clipped(text: str) -> str:
    left_out = len(text) - 2 * _END
    return f"{text[:_END]}\n… {left_out:,} characters …\n{text[-_END:]}" if left_out > 0 else text


def _facts(result: Result) -> dict[str, Any]:
    """How it was asked, with what."""
    versions = {f"version of {name}": value for name, value in result.versions.items()}
    return (
        _flat(result.settings) | versions | {f"questions of {one.benchmark}": one.fingerprint for one in result.scores}
    )


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {name: value}
    parts = (_flat(one, f"{name}.{key}" if name else str(key)) for key, one in value.items())
    return {key: one for part in parts for key, one in part.items()}


def _figures(directory: Path) -> list[Any]:
    """Drawings of what `evaluate needles --out` wrote, if it lies in the directory."""
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
