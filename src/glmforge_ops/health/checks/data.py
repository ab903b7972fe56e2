"""Data that every node reads: there, readable, and the same everywhere.

A node with other data trains on: its ranks see other tokens than the run's record says. Modification times say
nothing, since every way of copying treats them in another way.
"""

from collections import Counter
from collections.abc import Mapping

from glmforge_ops.health.checks.check import Check, Context, Level
from glmforge_ops.health.checks.facts import FactError, Facts
from glmforge_ops.health.checks.outcome import Outcome, failed, passed, skipped

NO_PATHS = skipped("no data_paths are given", "give them in cluster.yaml")
_MEND = "copy it again, and compare checksums: glmforge cluster stage"
_EQUAL = "equal on all nodes"

Survey = Mapping[str, Mapping[str, str]]
"""By path, then by file: its size and hash."""

Usual = Mapping[str, Mapping[str, str | None]]


def there(facts: Facts, context: Context) -> Outcome:
    """Every path holds files that this user can read."""
    paths = facts.each("paths")
    total = 0
    for found in paths:
        path, unreadable, num_files = found.text("path"), found.text("unreadable"), found.number("num_files")
        if unreadable is not None:
            return failed(f"{unreadable} is not readable", "readable", f"let this user read it: chmod -R a+rX {path}")
        if not num_files:
            return failed(f"{path} holds no files", "readable", "mount it, or copy it there: glmforge cluster stage")
        total += int(num_files)
    return passed(f"{total:,} files", "readable") if paths else NO_PATHS


def equal(facts: Mapping[str, Facts], context: Context) -> Mapping[str, Outcome]:
    """Names, sizes and some blocks of each file."""
    return _compare(facts, "names, sizes and blocks of {:,} files")


def whole(facts: Mapping[str, Facts], context: Context) -> Mapping[str, Outcome]:
    """Every byte, of as many files as every node could read in its time."""
    return _compare(facts, "every byte of {:,} files", only_common=True)


def _compare(facts: Mapping[str, Facts], words: str, only_common: bool = False) -> dict[str, Outcome]:
    surveys: dict[str, Survey] = {}
    outcomes: dict[str, Outcome] = {}
    for host, of_host in facts.items():
        try:
            surveys[host] = _survey(of_host)
        except FactError as error:
            outcomes[host] = failed(f"nothing is known: {error}", "", "is its python3 at least 3.8?")
    for host in [host for host, survey in surveys.items() if not any(survey.values())]:
        outcomes[host] = skipped("has no such files: see data.there") if surveys.pop(host) else NO_PATHS
    if len(surveys) < 2:
        return outcomes | dict.fromkeys(surveys, skipped("takes two nodes that have the data"))
    usual = _usual(surveys, only_common)
    num_files = sum(map(len, usual.values()))
    return outcomes | {host: _judge(survey, usual, words.format(num_files), only_common)
                       for host, survey in surveys.items()}  # fmt: skip


def _judge(survey: Survey, usual: Usual, words: str, only_common: bool) -> Outcome:
    """Against what most have. A path without any file is left out: `data.there` tells."""
    for path, files in survey.items():
        if not files:
            continue
        for name, expected in usual[path].items():
            if name not in files and not only_common:
                return failed(f"{path}/{name} is missing", _EQUAL, _MEND)
            if name in files and not _agrees(files[name], expected):
                return failed(f"{path}/{name} differs", _EQUAL, _MEND)
        extra = next((name for name in files if name not in usual[path]), None)
        if extra is not None:
            mend = "remove it, or copy it to the others: glmforge cluster stage"
            return failed(f"{path}/{extra} is on few nodes only", _EQUAL, mend)
    return passed(words, _EQUAL)


def _usual(surveys: Mapping[str, Survey], only_common: bool) -> Usual:
    """What most nodes say of each file that at least half of them have; None where they are divided."""
    counts: dict[str, dict[str, Counter[str]]] = {}
    holders = Counter(path for survey in surveys.values() for path, files in survey.items() if files)
    for survey in surveys.values():
        for path, files in survey.items():
            for name, found in files.items():
                counts.setdefault(path, {}).setdefault(name, Counter())[found] += 1
    return {
        path: {
            name: _most(of_file)
            for name, of_file in files.items()
            if only_common or 2 * of_file.total() >= holders[path]
        }
        for path, files in counts.items()
    }


def _most(counts: Counter[str]) -> str | None:
    ranked = counts.most_common()
    return None if len(ranked) > 1 and ranked[0][1] == ranked[1][1] else ranked[0][0]


def _agrees(found: str, usual: str | None) -> bool:
    """A dash stands for a hash that there was no time for."""
    if usual is None:
        return False
    size, _, digest = found.partition(" ")
    usual_size, _, usual_digest = usual.partition(" ")
    return size == usual_size and (digest == usual_digest or "-" in (digest, usual_digest))


def _survey(facts: Facts) -> Survey:
    survey: dict[str, dict[str, str]] = {}
    for found in facts.each("paths"):
        files = found.inner("files")
        names = files.names() if files is not None else []
        survey[found.text("path") or ""] = {
            name: (files.text(name) if files is not None else None) or "" for name in names
        }
    return survey


CHECKS = (
    Check("data.there", "data_paths hold files that can be read", Level.QUICK, "data_there", judge=there),
    Check("data.equal", "data_paths are the same on all nodes, by samples", Level.STANDARD, "data", compare=equal),
    Check("data.whole", "data_paths are the same on all nodes, byte for byte", Level.THOROUGH, "data_whole",
          compare=whole),
)  # fmt: skip
