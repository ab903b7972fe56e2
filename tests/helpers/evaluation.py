"""Small benchmarks and a small model to answer them, for tests of evaluation."""

import csv
import io
import json
import random
import zipfile
from pathlib import Path

import torch

from glmforge.checkpoint.convert import export_hf
from glmforge.config.model import ModelConfig
from glmforge.model import GlmMoe
from helpers.models import randomize_, tiny_config
from helpers.tiny_data import VOCAB_SIZE, TinyData

SUBJECTS = ("anatomy", "astronomy")
_WORDS = ("import", "return", "class", "list", "value", "name", "self", "error", "string", "file", "number", "line")


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
