"""The answers of each step in files of the run: `rollouts/step-00000012-00003.jsonl.gz`, one of each data rank.

The oldest are deleted where all would take more than they may.
"""

import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from glmforge.data.files import disk_errors, write_whole
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import DataError
from glmforge.rl.prompts import Prompt
from glmforge.rl.samples import Answer
from glmforge.rl.scored import reply_text

PATTERN = "step-*.jsonl.gz"


class SampleFiles:
    """Writes the answers that a data rank trains on.

    Args:
        share: the data rank; None on ranks that have another one's answers.
        max_bytes: of this rank's files.
    """

    def __init__(
        self,
        directory: Path,
        share: int | None,
        prompt_of: Callable[[int], Prompt],
        tokenizer: Tokenizer,
        max_bytes: int,
    ) -> None:
        self.directory, self.share, self.prompt_of, self.tokenizer = directory, share, prompt_of, tokenizer
        self.max_bytes = max_bytes

    def __call__(self, step: int, answers: Sequence[Answer]) -> None:
        if self.share is None:
            return
        lines = (json.dumps(self._record(step, one), ensure_ascii=False) for one in answers)
        content = gzip.compress("".join(f"{line}\n" for line in lines).encode(errors="replace"), mtime=0)
        path = self.directory / f"step-{step:08d}-{self.share:05d}.jsonl.gz"
        with disk_errors(path):
            self.directory.mkdir(parents=True, exist_ok=True)
            write_whole(path, content)
            mine = sorted(self.directory.glob(f"step-*-{self.share:05d}.jsonl.gz"), reverse=True)
            total = 0
            for one in mine:
                total += one.stat().st_size
                if total > self.max_bytes and one != path:
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
            "reply": reply_text(one, self.tokenizer),
            "finished": one.finished,
            "num_tokens": len(one.tokens_N),
            "reward": one.reward,
            "terms": one.terms,
            "advantage": None if advantages is None or not len(advantages) else float(advantages.mean()),
            "logprob": float(one.logprobs_N.sum()),
            "versions": [int(one.versions_N.min()), int(one.versions_N.max())] if len(one.versions_N) else [],
        }


def read_samples(directory: Path, step: int | None = None) -> Iterator[dict[str, Any]]:
    """The records of one step, or of all. Raises `DataError`: there are none, or a file is damaged."""
    pattern = PATTERN if step is None else f"step-{step:08d}-*.jsonl.gz"
    paths = sorted(directory.glob(pattern))
    if not paths:
        raise DataError(f"{directory}: has no answers" + ("" if step is None else f" of step {step:,}"))
    for path in paths:
        try:
            with gzip.open(path, "rt", encoding="utf-8") as file:
                for line in file:
                    yield json.loads(line)
        except (OSError, EOFError, ValueError) as error:
            raise DataError(f"{path}: damaged ({error})") from None
