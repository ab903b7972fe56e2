"""Keep the figures of README and docs equal to what the benchmarks measured.

    python benchmarks/figures.py list               # results older than the code they measured, and how to measure them
    python benchmarks/figures.py measure            # measure those again, then write the new figures into the text
    python benchmarks/figures.py measure train_step optimizer
    python benchmarks/figures.py update             # write the figures of results/*.json into README and docs
    python benchmarks/figures.py check              # exit status 1 and every place where text and results differ, and
                                                    # every unmarked measurement on the pages of `ALL_MARKED`

A figure in the text stands between two comments, which Markdown does not show:

    <!--fig train_step fp32.ratio .2f-->1.18<!--/fig-->

a result's name, the path of the figure in it (keys and list positions; a key with a dot or a space in quotation
marks), and a format of Python's; one that ends in F drops the zero before the point. Numbers and other paths of the
same result may be multiplied, divided, added or subtracted, from left to right: `bytes / 1e9`. The result's `measured`
has revision, machine, command and code; see `record.py`. Figures without a mark were measured once, by a script that is
gone from here (`git log -- benchmarks`); their page says when.
"""

import argparse
import json
import operator
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from record import RESULTS, ROOT, code_digest

FIGURE = re.compile(
    r'<!--fig (?P<result>\w+) (?P<value>(?:"[^"]*"|[^>"])+?) (?P<format>[^\s>]+?)-->(?P<text>.*?)<!--/fig-->', re.DOTALL
)
WORD = re.compile(r'(?:[^\s"]|"[^"]*")+')
CODE = re.compile(r"^```.*?^```|`[^`\n]*`|\]\([^)]*\)", re.DOTALL | re.MULTILINE)
NUMBER = r"(?<![\w.,/^-])(?:\d[\d,]*(?:\.\d+)?|\.\d+)"
UNIT = r"(?:ms|s|min|minutes?|seconds?|hours?|[kMGTP]i?B(?:/s)?|%|tokens/s|[GT]FLOP/s|CPU-s|core hours)"
MEASURED = re.compile(
    rf"{NUMBER}[ -]?{UNIT}(?![\w/])|{NUMBER}x(?![\w/])|{NUMBER} (?:documents )?(?:a |per CPU[ -])second"
    r"|(?<![\w.,])\.\d{2,}\b"
)
"""What reads like a measurement: a number with a unit of time, size, speed or share, or a score such as .938."""
STEP = re.compile(r'"([^"]*)"|([^."]+)')
GIVEN = ROOT / "benchmarks" / "figures_given.toml"
ALL_MARKED = ("README.md", "docs/plan.md", "docs/plan-accuracy.md", "docs/corpus/extract.md")
"""Pages on which every measurement is marked, but for what `GIVEN` has of them."""
OPERATIONS = {"*": operator.mul, "/": operator.truediv, "+": operator.add, "-": operator.sub}


class FigureError(Exception):
    """A marked figure that no result has."""


@dataclass(frozen=True)
class Figure:
    """One marked figure: the file and line it stands in, what it says and what it should say."""

    file: Path
    line: int
    text: str
    wanted: str


def documents() -> list[Path]:
    """The texts whose figures are held to the results."""
    folders = [ROOT / "docs", ROOT / "configs", ROOT / "examples"]
    return sorted([*ROOT.glob("*.md"), *(file for folder in folders for file in folder.rglob("*.md"))])


def figures(file: Path) -> Iterator[Figure]:
    """Every marked figure of `file`. Raises FigureError naming the place of one that no result has."""
    text = file.read_text("utf-8")
    for match in FIGURE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        try:
            wanted = format_figure(match["result"], match["value"], match["format"])
        except FigureError as error:
            raise FigureError(f"{file.relative_to(ROOT)}:{line}: {error}") from error
        yield Figure(file, line, match["text"], wanted)


def unmarked(file: Path) -> Iterator[tuple[int, str]]:
    """(line, figure) of what reads like a measurement, is not marked, and is not in `GIVEN` for this file."""
    text = file.read_text("utf-8")
    for snippet in given().get(str(file.relative_to(ROOT)), []):
        text = text.replace(snippet, re.sub(r"[^\n]", " ", snippet))
    for pattern in (CODE, FIGURE):
        text = pattern.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    for match in MEASURED.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, match[0]


def format_figure(result: str, value: str, style: str) -> str:
    """The text of a figure, such as '1.18' for ('train_step', 'fp32.ratio', '.2f')."""
    number = evaluate(_load(result), value, result)
    try:
        text = format(int(number) if style.endswith("d") else number, style)
    except (ValueError, TypeError) as error:
        raise FigureError(f"{result}: {value} is {number!r}, which {style!r} cannot format") from error
    return text.removeprefix("0") if style.endswith("F") and text.startswith("0.") else text


def evaluate(content: Any, expression: str, result: str) -> Any:
    """`expression` with the values of `content`, from left to right."""
    words = WORD.findall(expression)
    value = _operand(content, words[0], result)
    for sign, word in zip(words[1::2], words[2::2], strict=True):
        if sign not in OPERATIONS:
            raise FigureError(f"{result}: {expression}: {sign!r} is not one of {' '.join(OPERATIONS)}")
        value = OPERATIONS[sign](value, _operand(content, word, result))
    return value


def _operand(content: Any, word: str, result: str) -> Any:
    try:
        return float(word)
    except ValueError:
        pass
    for quoted, plain in STEP.findall(word):
        step = quoted or plain
        try:
            content = content[int(step)] if isinstance(content, list) else content[step]
        except (KeyError, IndexError, TypeError, ValueError):
            raise FigureError(f"benchmarks/results/{result}.json has no {word} (at {step!r})") from None
    if not isinstance(content, int | float | str):
        raise FigureError(f"benchmarks/results/{result}.json: {word} is not a single figure")
    return content


@cache
def _load(result: str) -> Any:
    file = RESULTS / f"{result}.json"
    if not file.is_file():
        raise FigureError(f"there is no benchmarks/results/{result}.json")
    return json.loads(file.read_text("utf-8"))


@cache
def given() -> dict[str, list[str]]:
    """File -> pieces of its text whose numbers nobody measured: settings, definitions, what others published."""
    return tomllib.loads(GIVEN.read_text("utf-8")) if GIVEN.is_file() else {}


def why_stale(result: str) -> str | None:
    """Why the figures of `result` may not be those of today's code; None if they are."""
    measured = _load(result).get("measured")
    if measured is None:
        return "has no record of what it measured"
    try:
        unchanged = code_digest(measured["code"]) == measured["code_digest"]
    except ValueError as error:
        return str(error)
    return None if unchanged else f"the code has changed since {measured['revision']} ({measured['date']})"


def results() -> list[str]:
    """Names of all results."""
    return sorted(file.stem for file in RESULTS.glob("*.json"))


def print_stale(names: list[str]) -> list[str]:
    """Print which of `names` are stale and how to measure them; returns them."""
    reasons = {name: reason for name in names if (reason := why_stale(name))}
    for name, reason in reasons.items():
        print(f"{name}: {reason}\n    {_load(name).get('measured', {}).get('command', 'unknown command')}")
    print(f"{len(reasons)} of {len(names)} results are older than the code they measured")
    return list(reasons)


def measure(names: list[str]) -> int:
    """Run the commands of `names` again, one after the other; returns how many failed."""
    failed = 0
    for name in names:
        command = _load(name).get("measured", {}).get("command")
        if command is None:
            print(f"{name}: unknown command; run its benchmark manually", file=sys.stderr)
            failed += 1
            continue
        print(f"\n{name}: {command}", flush=True)
        failed += subprocess.run([sys.executable, *shlex.split(command)[1:]], cwd=ROOT).returncode != 0
    _load.cache_clear()
    return failed


def update() -> None:
    """Write what the results say into every marked place."""
    for file in documents():
        found = list(figures(file))
        if all(figure.text == figure.wanted for figure in found):
            continue
        wanted = iter(found)
        text = FIGURE.sub(lambda match: _replaced(match, next(wanted)), file.read_text("utf-8"))  # noqa: B023
        file.write_text(text, "utf-8")
        print(f"{file.relative_to(ROOT)}: {sum(f.text != f.wanted for f in found)} figures written")


def _replaced(match: re.Match[str], figure: Figure) -> str:
    return match[0][: match.start("text") - match.start()] + figure.wanted + "<!--/fig-->"


def differing() -> list[str]:
    """Every place where text and results differ, in words."""
    found = []
    for file in documents():
        try:
            wrong = [figure for figure in figures(file) if figure.text != figure.wanted]
        except FigureError as error:
            found.append(str(error))
            continue
        found += [f"{f.file.relative_to(ROOT)}:{f.line}: says {f.text}, measured is {f.wanted}" for f in wrong]
    return found


def without_source() -> list[str]:
    """Every unmarked measurement on the pages of `ALL_MARKED`, and every exemption that no page needs any more."""
    found = []
    for name in ALL_MARKED:
        found += [f"{name}:{line}: {figure} has no result" for line, figure in unmarked(ROOT / name)]
    for name, snippets in given().items():
        text = (ROOT / name).read_text("utf-8")
        found += [f"{GIVEN.name}: {name} does not say {snippet!r}" for snippet in snippets if snippet not in text]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=("list", "measure", "update", "check"))
    parser.add_argument("names", nargs="*", help="results to list or to measure; default: all, and all that are stale")
    args = parser.parse_args()
    if unknown := set(args.names) - set(results()):
        parser.error(f"no such result: {', '.join(sorted(unknown))}; there are {', '.join(results())}")
    if args.action == "check":
        wrong = differing() + without_source()
        print("\n".join(wrong) or "every marked figure equals its result")
        return bool(wrong)
    if args.action == "update":
        update()
        return 0
    stale = print_stale(args.names or results())
    if args.action == "list":
        return 0
    failed = measure(args.names or stale)
    update()
    return failed > 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except FigureError as error:
        sys.exit(str(error))
