"""The answers of each step in files of the run: `rollouts/step-00000012-00003.jsonl.gz`, one of each data rank.

The oldest are deleted where all would take more than they may, and those of steps that are trained on again, after a
resume or a rollback, before they are.
"""

import gzip
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from glmforge.data.files import disk_errors, write_whole
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import DataError
from glmforge.rl.prompts import Prompt
from glmforge.rl.samples import Answer
from glmforge.rl.scored import reply_text

_NAME = re.compile(r"step-(\d{8,})-(\d{5,})\.jsonl\.gz(\.partial)?")


class SampleFiles:
    """Writes the answers that a data rank trains on.

    Args:
        share: the data rank; None on ranks that have another one's answers.
        num_shares: how many data ranks there are.
        max_bytes: of this rank's files.
    """

    def __init__(
        self,
        directory: Path,
        share: int | None,
        num_shares: int,
        prompt_of: Callable[[int], Prompt],
        tokenizer: Tokenizer,
        max_bytes: int,
    ) -> None:
        self.directory, self.share, self.prompt_of, self.tokenizer = directory, share, prompt_of, tokenizer
        self.num_shares, self.max_bytes = num_shares, max_bytes
        self._next_step: int | None = None

    def __call__(self, step: int, answers: Sequence[Answer]) -> None:
        if self.share is None:
            return
        lines = (json.dumps(self._record(step, one), ensure_ascii=False) for one in answers)
        content = gzip.compress("".join(f"{line}\n" for line in lines).encode(errors="replace"), mtime=0)
        path = self.directory / f"step-{step:08d}-{self.share:05d}.jsonl.gz"
        with disk_errors(path):
            self.directory.mkdir(parents=True, exist_ok=True)
            if step != self._next_step:
                self._forget(step)
            write_whole(path, content)
            self._bound(path)
        self._next_step = step + 1

    def _forget(self, first: int) -> None:
        """Delete what was written of this step and later ones: by this rank, and by ranks that are no longer there."""
        for path in self.directory.iterdir():
            if name := _NAME.fullmatch(path.name):
                step, share = int(name[1]), int(name[2])
                gone = self.share == 0 and share >= self.num_shares
                if step >= first and (share == self.share or gone):
                    path.unlink(missing_ok=True)

    def _bound(self, newest: Path) -> None:
        """Delete this rank's oldest files where all of them take too much."""
        total = 0
        for one in sorted(self.directory.glob(f"step-*-{self.share:05d}.jsonl.gz"), reverse=True):
            total += one.stat().st_size
            if total > self.max_bytes and one != newest:
                one.unlink()

    def _record(self, step: int, one: Answer) -> dict[str, Any]:
        prompt = self.prompt_of(one.prompt)
        advantages = one.advantages_N
        return {
            "step": step,
            "prompt": prompt.id,
            "source": prompt.source,
            "group": one.prompt,
            "sample": one.sample,
            "question": prompt.text,
            "reply": reply_text(one, self.tokenizer, whole=True),
            "finished": one.finished,
            "num_tokens": int(one.own_N.sum()),
            "reward": one.reward,
            "terms": one.terms,
            "advantage": None if advantages is None or not len(advantages) else float(advantages.mean()),
            "logprob": float(one.logprobs_N.sum()),
            "begun": one.begun,
            "versions": [int(one.versions_N.min()), int(one.versions_N.max())] if len(one.versions_N) else [],
        }


def steps_written(directory: Path) -> list[int]:
    """Steps whose answers are there, in ascending order; a directory that is missing has none."""
    if not directory.is_dir():
        return []
    names = (_NAME.fullmatch(path.name) for path in directory.iterdir())
    return sorted({int(name[1]) for name in names if name and not name[3]})


def read_samples(directory: Path, step: int) -> list[dict[str, Any]]:
    """The records of a step, by group and sample. Raises `DataError`: there are none, or a file is damaged."""
    records = [record for path in sorted(directory.glob(f"step-{step:08d}-*.jsonl.gz")) for record in _read(path)]
    if not records:
        steps = steps_written(directory)
        there = f"; there are steps {steps[0]:,} to {steps[-1]:,}" if steps else ""
        raise DataError(f"{directory}: has no answers of step {step:,}{there}")
    return sorted(records, key=lambda one: (one["group"], one["sample"]))


def _read(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                yield json.loads(line)
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"{path}: damaged ({error})") from None
