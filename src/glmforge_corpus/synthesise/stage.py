"""Verified problems as a stage that reads nothing: made, checked, made unique, kept apart from evaluation sets.

Steps: *candidates*, a task per range of indices of one family and level, makes a few more problems than are wanted,
has the independent checker go over each, and looks for evaluation items in them; *choice*, one task, takes the first
of each question, in the order of families, levels and indices; *documents*, a task per range again, writes what was
chosen, as documents and as conversations. Nothing depends on the number of tasks or workers but the files' names.

`decontaminate.contamination` omits n-grams that prove nothing, such as rows of numbers, because web text is full
of them. Here a problem more or less costs nothing, so the plain rule of GPT-3 (arXiv:2005.14165, appendix C) is applied
as well: no run of 13 words in common. Such a run holds one of the blocks of 7 that a text is cut into: only those are
looked up, and texts with a hit are gone over in full.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import Field, model_validator

from glmforge.config.model import refuse
from glmforge.data.documents.batch import DocumentBatch
from glmforge_corpus.decontaminate.contamination import Matching, load_once
from glmforge_corpus.decontaminate.evaluation_sets import EvaluationSet, read_items
from glmforge_corpus.pipeline.stage import (
    DOCUMENTS,
    REPORT,
    Stage,
    StageContext,
    Step,
    TaskOutput,
    pass_on,
    task_directory,
)
from glmforge_corpus.pipeline.statistics import dump_json
from glmforge_corpus.synthesise.check import why_wrong
from glmforge_corpus.synthesise.generate import FAMILIES, LANGUAGES, make_problem
from glmforge_corpus.synthesise.problem import LEVELS, Problem, pattern_hash, question_hash

RUN = 13
_BLOCK = (RUN + 1) // 2
_WORD = re.compile(r"[\u3400-\u9fff]|[^\W_\u3400-\u9fff]+")


def _grams(words: Sequence[str], size: int, stride: int = 1) -> Iterable[str]:
    return (" ".join(words[i : i + size]) for i in range(0, len(words) - size + 1, stride))


class Runs:
    """The runs of some texts, to be looked for in others."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._runs, self._blocks = set[str](), set[str]()
        for text in texts:
            words = _WORD.findall(text.casefold())
            if len(words) >= RUN:
                self._runs.update(_grams(words, RUN))
                self._blocks.update(_grams(words, _BLOCK))

    def meet(self, text: str) -> bool:
        """Whether `RUN` words in a row of `text` stand in one of the texts."""
        words = _WORD.findall(text.casefold())
        if not any(block in self._blocks for block in _grams(words, _BLOCK, _BLOCK)):
            return False
        return any(run in self._runs for run in _grams(words, RUN))


@lru_cache(maxsize=1)
def runs_of(against: tuple[EvaluationSet, ...]) -> Runs:
    """Of all items of evaluation sets; kept for the next task of this process."""
    return Runs(text for one in against for item in read_items(one) for _, text in (*item.passages, *item.joined))


MESSAGES = "messages.jsonl"
"""The file in a task's directory that holds its conversations."""

SOURCE = "synthetic"
_HASHES, _CHOSEN = "hashes.npz", "chosen.npz"


class Problems(Stage):
    """Problems with verified solutions, as many of each family and level."""

    kind: ClassVar[str] = "problems"

    count: int = Field(ge=1, description="number of problems, over all families and levels")
    families: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        default=tuple(FAMILIES), description=f"any of {', '.join(FAMILIES)}"
    )
    levels: Annotated[tuple[int, ...], Field(strict=False)] = Field(default=LEVELS, description="difficulties, 1 to 5")
    languages: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        default=LANGUAGES, description="en, zh; with both, three in ten problems are Chinese"
    )
    against: Annotated[tuple[EvaluationSet, ...], Field(strict=False)] = Field(
        default=(), description="evaluation sets whose items must not occur"
    )
    surplus: float = Field(default=0.06, ge=0, description="share of extra problems to make, to replace duplicates")
    block: int = Field(default=1500, ge=1, description="problems per task")

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        for field, given, known in (
            ("families", self.families, tuple(FAMILIES)),
            ("levels", self.levels, LEVELS),
            ("languages", self.languages, LANGUAGES),
        ):
            unknown = [value for value in given if value not in known]
            if unknown:
                refuse(field, f"no '{unknown[0]}': choose from {', '.join(map(str, known))}")
            if not given:
                refuse(field, f"name at least one of {', '.join(map(str, known))}")
            if len(set(given)) < len(given):
                refuse(field, "has a duplicate name; list each once")
        return self

    def check(self) -> Self:
        if self.against:
            load_once(self.against, Matching())
        return self

    def steps(self, context: StageContext) -> list[Step]:
        ranges = tuple(self._ranges())
        return [
            _Candidates(self, ranges, context.seed),
            _Choice(self, ranges, context.directory),
            _Documents(len(ranges), context.directory),
        ]

    def describe(self) -> str:
        return f"problems: {self.count:,} of {', '.join(self.families)}"

    def quotas(self) -> list[int]:
        """How many are wanted of each slot: family by family, level by level."""
        slots = len(self.families) * len(self.levels)
        return [self.count // slots + (slot < self.count % slots) for slot in range(slots)]

    def _ranges(self) -> Iterator["ProblemRange"]:
        for slot, quota in enumerate(self.quotas()):
            family, level = self.families[slot // len(self.levels)], self.levels[slot % len(self.levels)]
            made = int(quota * (1 + self.surplus)) + 20
            for start in range(0, made, self.block):
                yield ProblemRange(slot, family, level, start, min(start + self.block, made))


@dataclass(frozen=True, slots=True)
class ProblemRange:
    """Indices [start, stop) of one family and level, the slot."""

    slot: int
    family: str
    level: int
    start: int
    stop: int


@dataclass(frozen=True)
class _Candidates(Step):
    options: Problems
    ranges: Sequence[ProblemRange]
    seed: int
    name: str = "candidates"

    @property
    def num_tasks(self) -> int:  # type: ignore[override]
        return len(self.ranges)

    def run(self, task: int, output: TaskOutput) -> None:
        part = self.ranges[task]
        languages = self.options.languages
        made = [make_problem(self.seed, part.family, part.level, i, languages) for i in range(part.start, part.stop)]
        problems, records = self._verified(made, output)
        batch = _as_batch(problems, [orjson.dumps(record).decode() for record in records])
        clean = self._uncontaminated(records, batch, output)
        questions = [record["question"] for record, keep in zip(records, clean, strict=True) if keep]
        np.savez(
            output.directory / _HASHES,
            question=np.array([question_hash(q) for q in questions], "V16"),
            pattern=np.array([pattern_hash(q) for q in questions], np.uint64),
        )
        with output.documents() as writer:
            writer.write(batch.keep(clean))

    @staticmethod
    def _verified(made: list[Problem], output: TaskOutput) -> tuple[list[Problem], list[dict[str, Any]]]:
        problems, records = [], []
        for problem in made:
            record = problem.record()
            reason = why_wrong(record)
            if reason is None:
                problems.append(problem)
                records.append(record)
            else:
                output.quarantine("not verified", problem.id, orjson.dumps(record), reason)
        output.statistics.counts.update(made=len(made), verified=len(records))
        return problems, records

    def _uncontaminated(
        self, records: list[dict[str, Any]], batch: DocumentBatch, output: TaskOutput
    ) -> NDArray[np.bool_]:
        clean = np.ones(len(records), np.bool_)
        if self.options.against and records:
            texts = [_searched(record) for record in records]
            for finding in load_once(self.options.against, Matching()).find(texts):
                clean[finding.document] = False
                output.statistics.failed[f"contaminated: {finding.set_name}"] += 1
            runs = runs_of(self.options.against)
            met = np.array([runs.meet(text) for text in texts])
            output.statistics.failed["contaminated: run of words"] += int(met.sum())
            clean &= ~met
            output.statistics.add_removed("contaminated", batch, np.flatnonzero(~clean))
        return clean


def _searched(record: dict[str, Any]) -> str:
    """Question, reasoning and reply: what evaluation items are looked for in."""
    parts = [part for m in record["messages"] for part in (m.get("reasoning_content", ""), m["content"])]
    return "\n".join(parts)


def _as_batch(problems: list[Problem], metadata: list[str]) -> DocumentBatch:
    return DocumentBatch.from_columns(
        [problem.id for problem in problems],
        [problem.text() for problem in problems],
        SOURCE,
        languages=[problem.language for problem in problems],
        metadata=metadata,
    )


@dataclass(frozen=True)
class _Choice(Step):
    options: Problems
    ranges: Sequence[ProblemRange]
    stage_directory: Path
    name: str = "choice"
    num_tasks: int = 1

    def run(self, task: int, output: TaskOutput) -> None:
        questions, patterns, lengths = [], [], []
        for number in range(len(self.ranges)):
            with np.load(task_directory(self.stage_directory, _Candidates.name, number) / _HASHES) as stored:
                questions.append(stored["question"])
                patterns.append(stored["pattern"])
                lengths.append(len(stored["question"]))
        slots = np.repeat([part.slot for part in self.ranges], lengths)
        unique = first_occurrences(np.concatenate(questions))
        chosen = choose(unique, slots, self.options.quotas())
        np.savez(output.directory / _CHOSEN, chosen=chosen, starts=np.concatenate([[0], np.cumsum(lengths)]))
        counts = output.statistics.counts
        counts["duplicates"] = int((~unique).sum())
        counts["distinct questions without numbers"] = len(np.unique(np.concatenate(patterns)[chosen]))
        counts["fewer than wanted"] = self.options.count - int(chosen.sum())


def first_occurrences(keys: NDArray[np.void]) -> NDArray[np.bool_]:
    """`[n]`: true where a key stands for the first time."""
    first = np.zeros(len(keys), np.bool_)
    first[np.unique(keys, return_index=True)[1]] = True
    return first


def choose(unique: NDArray[np.bool_], slots: NDArray[np.integer], quotas: Sequence[int]) -> NDArray[np.bool_]:
    """`[n]`: the first `quotas[s]` unique candidates of each slot; what a slot lacks, others give of their surplus.

    Args:
        unique: `[n]`.
        slots: `[n]`, not decreasing.
        quotas: wanted of each slot.
    """
    rank = np.cumsum(unique) - 1
    starts = np.searchsorted(slots, np.arange(len(quotas)))
    before = np.concatenate([[0], np.cumsum(unique)])[starts]
    rank = rank - before[slots]
    chosen: NDArray[np.bool_] = unique & (rank < np.asarray(quotas)[slots])
    missing = int(sum(quotas)) - int(chosen.sum())
    if missing > 0:
        spare = np.flatnonzero(unique & ~chosen)
        over = rank[spare] - np.asarray(quotas)[slots[spare]]
        chosen[spare[np.argsort(over, kind="stable")[:missing]]] = True
    return chosen


@dataclass(frozen=True)
class _Documents(Step):
    num_tasks: int
    stage_directory: Path
    name: str = "documents"

    def run(self, task: int, output: TaskOutput) -> None:
        with np.load(task_directory(self.stage_directory, _Choice.name, 0) / _CHOSEN) as stored:
            start, stop = stored["starts"][task : task + 2]
            chosen = stored["chosen"][start:stop]
        templates: dict[str, int] = {}
        candidates = task_directory(self.stage_directory, _Candidates.name, task) / DOCUMENTS

        def chosen_of(batch: DocumentBatch, row: int) -> DocumentBatch:
            kept = batch.keep(chosen[row : row + len(batch)])
            for line in kept.table.column("metadata").to_pylist():
                file.write(line.encode() + b"\n")
                record = orjson.loads(line)
                key = f"{record['family']}, level {record['level']}, {record['template']}"
                templates[key] = templates.get(key, 0) + 1
            return kept

        with (output.directory / MESSAGES).open("wb") as file:
            pass_on(candidates, output, chosen_of)
        (output.directory / REPORT).write_bytes(dump_json({"templates": templates}))
