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
from glmforge.evaluate.failures import KINDS, Failures, Group, failures_of, reasons
from glmforge.evaluate.official import official_of
from glmforge.evaluate.result import Item, Result, Score, Written, read_result
from glmforge.extras import needed_for
from glmforge.observe.record_files import read_jsonl
from glmforge.observe.run import write_text
from glmforge.observe.units import format_count
from glmforge.report.page import Summary, Table, Tile, check_suffix, make_table, page_template

PAGE, NEEDLES = "page.html", "needles.jsonl"
_SHOWN_GROUPS, _SHOWN_FLIPS, _SHOWN_OF_KIND = 15, 6, 3
_HEAD, _TAIL = 1200, 1200


class Side(NamedTuple):
    """What one model made of an item."""

    title: str
    text: str
    verdict: str
    reasoning: str = ""


class Example(NamedTuple):
    title: str
    prompt: str
    sides: tuple[Side, ...]


def write_result_page(directory: Path, out: Path | None = None, baseline: Path | None = None) -> Path:
    """Scores, failures and long context of a result, beside it; compared with a baseline if there is one.

    Raises:
        DataError: a result is missing or damaged.
        MissingPackageError: there are needle records, and matplotlib is not installed.
    """
    result = read_result(directory)
    failures = failures_of(directory)
    tables = [_extras(result), _official(result), _settings(result)]
    parts: dict[str, Any] = {"failures": failures, "figures": _figures(directory), "tables": tables}
    parts["scores"] = [(score, official_of(score.benchmark)) for score in result.scores]
    if baseline is not None:
        parts |= _compared(baseline, directory)
    return _write(directory / PAGE if out is None else out, directory, result, **parts)


def write_comparison_page(old: Path, new: Path, out: Path) -> Path:
    """The differences, why items fell, and those that flipped side by side; failures of the new result."""
    result = read_result(new)
    parts = _compared(old, new)
    names = {one.benchmark for one in parts["comparisons"]}
    failures = [one for one in failures_of(new) if one.benchmark in names]
    return _write(out, new, result, failures=failures, tables=[_settings(result)], **parts)


def write_failures_page(directory: Path, out: Path, benchmark: str | None = None) -> Path:
    """The failures of a result, or of one of its benchmarks."""
    return _write(out, directory, read_result(directory), failures=failures_of(directory, benchmark))


def _write(out: Path, directory: Path, result: Result, tables: Sequence[Table] = (), **parts: Any) -> Path:
    check_suffix(out, "--out")
    written = [score for score in result.scores if score.num_finished is not None]
    num_replies = sum(score.num_items * score.num_samples for score in written)
    cut = sum(score.cut_share * score.num_items * score.num_samples for score in written)
    tiles = [
        Tile("Benchmarks", f"{len(result.scores)}"),
        Tile("Items", f"{sum(score.num_items for score in result.scores):,}"),
        Tile("Tokens", format_count(sum(score.num_tokens for score in result.scores)), "written and scored"),
        *([Tile("Replies cut", f"{cut / num_replies:.0%}", f"of {num_replies:,}")] if num_replies else []),
    ]
    step = "" if result.step is None else f"step {result.step:,}"
    lead = " · ".join(filter(None, (step, result.weights and f"weights {result.weights[:12]}", result.created)))
    summary = Summary(result.model, lead, tiles, [table for table in tables if table.rows])
    empty: dict[str, Any] = {name: [] for name in ("scores", "comparisons", "changed", "figures", "failures")}
    helpers = {
        "remarks": remarks,
        "explained": explained,
        "flipped": _flipped,
        "groups": _groups,
        "examples": _examples,
    }
    content = page_template("evaluation.html").render(
        empty | {"baseline": "", "summary": summary, "source": str(directory)} | helpers | parts
    )
    write_text(out, content.encode(errors="backslashreplace").decode())
    return out


def remarks(score: Score) -> list[str]:
    """What a reader of the score has to know besides."""
    found = [f"no score: {score.refused}"] if score.refused else []
    if score.chance and score.interval and score.interval.low <= score.chance <= score.interval.high:
        found.append("the interval holds what guessing scores: nothing is shown")
    if score.num_truncated:
        found.append(f"{score.num_truncated:,} prompts were too long for the model and lost their beginning")
    return found


def explained(one: Compared) -> list[str]:
    """Why items fell and rose: kinds of failure, and the subjects that lost most."""
    found = []
    if not one.same_questions:
        found.append(f"The questions differ: only the items that both have ({one.comparison.difference.num_items:,}).")
    for pairs, verb, when in ((one.worse, "fell", "now"), (one.better, "rose", "before")):
        kinds = reasons(pair.new if when == "now" else pair.old for pair in pairs)
        if kinds:
            words = ", ".join(f"{number:,} {kind}" for kind, number in kinds.most_common())
            found.append(f"Of {len(pairs):,} items that {verb}, failed replies {when}: {words}.")
    lost: Counter[str] = Counter()
    for pair in (*one.worse, *one.better):
        lost[pair.new.subject] -= round(1000 * pair.change)
    worst = [f"{name} ({-number / 1000:+.1f} items)" for name, number in lost.most_common(3) if name and number > 0]
    return [*found, f"Most is lost in {', '.join(worst)}."] if worst else found


def _compared(old: Path, new: Path) -> dict[str, Any]:
    before, after = (_flat(read_result(path).settings) for path in (old, new))
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    changed = [f"Asked differently: {name} was {before.get(name)}, is {after.get(name)}." for name in names]
    return {"comparisons": compare_results(old, new), "baseline": str(old), "changed": changed}


def _flipped(one: Compared) -> list[Example]:
    return [
        Example(
            f"{word}: item {pair.new.number}{_of_subject(pair.new)}, {pair.old.score:.2f} → {pair.new.score:.2f}",
            clipped(pair.new.prompt),
            (_side(pair.old, "Old"), _side(pair.new, "New")),
        )
        for word, pairs in (("Worse", one.worse), ("Better", one.better))
        for pair in pairs[:_SHOWN_FLIPS]
    ]


def _examples(one: Failures) -> list[Example]:
    by_kind = [[failure for failure in one.failures if failure.kind == kind][:_SHOWN_OF_KIND] for kind in KINDS]
    return [
        Example(
            f"{failure.kind}: item {failure.item.number}{_of_subject(failure.item)}",
            clipped(failure.item.prompt),
            (_side(failure.item, "The model", failure.reply), Side("Right", clipped(_target(failure.item)), "")),
        )
        for failures in by_kind
        for failure in failures
    ]


def _side(item: Item, title: str, reply: Written | None = None) -> Side:
    """A reply (the first failed one unless it is named), or the choices with what the model chose."""
    if item.choices and not item.written:
        lines = [
            f"{'→' if place == item.predicted else ' '} {one.text.strip()}  (log-likelihood {one.logprob:.2f})"
            for place, one in enumerate(item.choices)
        ]
        return Side(title, clipped("\n".join(lines)), f"score {item.score:.2f}; right: {clipped(_target(item))}")
    if not item.written:
        return Side(title, "", f"score {item.score:.2f}")
    reply = reply or next((one for one in item.written if one.score <= 0), item.written[0])
    extracted = "nothing" if reply.extracted is None else f"“{clipped(reply.extracted)}”"
    cut = "cut, " if reply.is_cut else ""
    verdict = f"extracted {extracted}; score {reply.score:.2f}; {cut}{reply.num_tokens:,} tokens"
    return Side(title, clipped(reply.answer), verdict, "" if reply.text == reply.answer else clipped(reply.text))


def _target(item: Item) -> str:
    """The right answer; of a choice that is named by its number, its text."""
    number = int(item.target) if item.choices and item.target.isascii() and item.target.isdigit() else len(item.choices)
    return item.choices[number].text.strip() if number < len(item.choices) else item.target


def _of_subject(item: Item) -> str:
    return f" ({item.subject})" if item.subject else ""


def clipped(text: str) -> str:
    """A long text from both ends."""
    left_out = len(text) - _HEAD - _TAIL
    return f"{text[:_HEAD]}\n… {left_out:,} characters …\n{text[-_TAIL:]}" if left_out > 0 else text


def _groups(one: Failures) -> list[Table]:
    parts = (("subject", one.by_subject), ("level", one.by_level), ("length of the prompt", one.by_length))
    return [_group_table(f"{one.benchmark} by {name}", groups, one) for name, groups in parts if groups]


def _group_table(title: str, groups: Sequence[Group], one: Failures) -> Table:
    kinds = [kind for kind in KINDS if one.kinds[kind]]
    rows = [
        [
            group.name or "not told",
            f"{group.num_items:,}",
            f"{group.score:.1%}",
            *(f"{group.kinds[k]:,}" for k in kinds),
        ]
        for group in groups[:_SHOWN_GROUPS]
    ]
    note = f"The {_SHOWN_GROUPS} worst of {len(groups):,}." if len(groups) > _SHOWN_GROUPS else ""
    return make_table(title, ("Group", "Items", "Score", *kinds), rows, note=note)


def _extras(result: Result) -> Table:
    rows = [
        [f"{score.benchmark}: {name}", f"{value:.1%}" if 0 <= value <= 1 else f"{value:.3f}"]
        for score in result.scores
        for name, value in score.extra.items()
    ]
    return make_table("Further measures", ("Measure", "Value"), rows)


def _official(result: Result) -> Table:
    rows = [
        [f"{one.benchmark}: {one.model}", f"{one.score:.1%}", one.settings, one.source]
        for score in result.scores
        for one in official_of(score.benchmark)
    ]
    columns = make_table("", ("Benchmark", "Score"), []).columns
    table = make_table("Published figures", ("Benchmark", "Score", "Settings", "Source"), rows)
    words = [column._replace(number=False) for column in table.columns[2:]]
    note = "Measured by others, with other prompts, budgets and samples: they are a mark, not a bar to be passed."
    return table._replace(columns=[*columns, *words], note=note)


def _settings(result: Result) -> Table:
    facts = {**_flat(result.settings), **{f"version of {name}": value for name, value in result.versions.items()}}
    facts |= {f"fingerprint of {score.benchmark}": score.fingerprint for score in result.scores}
    table = make_table("How it was asked", ("Setting", "Value"), [[name, str(value)] for name, value in facts.items()])
    return table._replace(columns=[column._replace(number=False) for column in table.columns])


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
        maps = [needle_map([one for one in records if "needle_task" in one], "")]
        return [figure for figure in (*maps, perplexity_by_position(records)) if figure is not None]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: not the records of 'glmforge evaluate needles --out' ({error})") from None
