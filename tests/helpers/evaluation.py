"""Small benchmarks and a small model to answer them, for tests of evaluation."""

import csv
import io
import json
import random
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from glmforge.checkpoint.convert import export_hf
from glmforge.config.model import ModelConfig
from glmforge.evaluate.benchmarks.replies import Reply
from glmforge.model import GlmMoe
from helpers.models import randomize_, tiny_config
from helpers.tiny_data import VOCAB_SIZE, TinyData

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

SUBJECTS = ("anatomy", "astronomy")
_WORDS = ("import", "return", "class", "list", "value", "name", "self", "error", "string", "file", "number", "line")


WRONG = "The answer is #### 4567 \\boxed{4567}"


@dataclass
class FakeModel:
    """A model of benchmarks that answers as a function of the request and the number of the sample says.

    Attributes:
        prefers: the log-likelihood of a choice.
        cuts: which samples are cut.
        prompts: that it was given to answer.
    """

    says: "Callable[[Instance, int], str]" = lambda request, sample: WRONG
    prefers: "Callable[[Instance], float]" = lambda request: 0.0
    num_samples: int = 1
    cuts: "Callable[[Instance, int], bool]" = lambda request, sample: False
    prompts: list[str] = field(default_factory=list)

    tokenizer_name = "fake"

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True, tools: object = None
    ) -> str:
        return json.dumps([chat_history, tools])

    def score(self, requests: "Sequence[Instance]") -> list[Reply]:
        return [Reply("score", 1, 5, logprob=self.prefers(request), is_greedy=False) for request in requests]

    def write(self, requests: "Sequence[Instance]") -> list[list[Reply]]:
        self.prompts += [request.args[0] for request in requests]
        return [
            [
                Reply("text", 3, 5, self.says(one, sample), finished="length" if self.cuts(one, sample) else "stop")
                for sample in range(self.num_samples)
            ]
            for one in requests
        ]


def write_export(data: TinyData, directory: Path, **changes: object) -> Path:
    """A model with random weights in fp32 and the tokenizer of `data`, in Hugging Face format."""
    config: ModelConfig = tiny_config(**({"vocab_size": VOCAB_SIZE, "max_position_embeddings": 1024} | changes))
    model = GlmMoe(config)
    randomize_(model)
    export_hf(model.state_dict(), config, directory, tokenizer_dir=data.tokenizer, dtype=torch.float32)
    return directory


def write_benchmarks(directory: Path, num_items: int = 6, seed: int = 0) -> Path:
    """Files of gsm8k, mmlu, math and humaneval as the authors publish them, with short made-up questions."""
    directory.mkdir(parents=True, exist_ok=True)
    draw = random.Random(seed)

    def words(number: int) -> str:
        return " ".join(draw.choices(_WORDS, k=number))

    def gsm8k() -> dict[str, object]:
        return {"question": f"{words(6)}?", "answer": f"{words(3)}\n#### {draw.randrange(1000)}"}

    def math(number: int) -> dict[str, object]:
        solution = f"So \\boxed{{{draw.randrange(100)}}}."
        return {"problem": words(5), "solution": solution, "level": f"Level {number % 5}", "type": "Algebra"}

    def humaneval(number: int) -> dict[str, object]:
        tests = f"def check(f):\n    assert f(1) == {number + 1}\n"
        prompt = f"def add(x):\n    # {words(2)}\n"
        return {"task_id": str(number), "prompt": prompt, "test": tests, "entry_point": "add"}

    _write(directory / "gsm8k-test.jsonl", [gsm8k() for _ in range(num_items)])
    _write(directory / "gsm8k-train.jsonl", [gsm8k() for _ in range(8)])
    _write(directory / "math-test.jsonl", [math(number) for number in range(num_items)])
    _write(directory / "HumanEval.jsonl", [humaneval(number) for number in range(num_items)])
    with zipfile.ZipFile(directory / "mmlu.zip", "w") as archive:
        for subject in SUBJECTS:
            for split, number in (("test", num_items), ("dev", 5)):
                text = io.StringIO()
                csv.writer(text).writerows(
                    [words(5), *(words(2) for _ in "ABCD"), draw.choice("ABCD")] for _ in range(number)
                )
                archive.writestr(f"data/{split}/{subject}_{split}.csv", text.getvalue())
    return directory


def _write(path: Path, rows: list[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
