"""A tokenizer and token shards small enough to make anew for every test run, from real text."""

import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glmforge.config.schema import RunConfig
from glmforge.data.documents.document import Document
from glmforge.data.tokens.bpe import train_tokenizer
from glmforge.data.tokens.tokenize import tokenize_corpus
from helpers.models import tiny_config

TRAINING_MODULES = (
    "argparse",
    "bisect",
    "calendar",
    "cmd",
    "contextlib",
    "copy",
    "csv",
    "dis",
    "enum",
    "glob",
)
HELD_OUT_MODULES = ("heapq", "hmac")
VOCAB_SIZE = 512


@dataclass(frozen=True)
class TinyData:
    """Where the tokenizer and the shards lie."""

    tokenizer: Path
    train: Path
    held_out: Path

    def run_config(self, output_dir: Path, **sections: Any) -> RunConfig:
        """A run of the tiny model on these shards: fp32, eight rows of 32 tokens, ten steps, no progress bar."""
        base: dict[str, Any] = {
            "name": "tiny",
            "output_dir": str(output_dir),
            "model": tiny_config(vocab_size=VOCAB_SIZE).model_dump(),
            "data": {
                "tokenizer": str(self.tokenizer),
                "sources": [{"name": "text", "path": str(self.train)}],
                "held_out": [{"name": "held_out", "path": str(self.held_out)}],
            },
            "phases": [{"name": "main", "steps": 10, "seq_len": 32, "batch_size": 8}],
            "optim": {"lr": 3e-3, "min_lr": 3e-4, "warmup_steps": 2},
            "precision": {"compute": "fp32"},
            "observe": {"progress": False, "tensorboard": False},
        }
        return RunConfig.model_validate(base | sections)


def make_tiny_data(directory: Path) -> TinyData:
    """Write everything under `directory`."""
    data = TinyData(directory / "tokenizer", directory / "train", directory / "held_out")
    train_tokenizer((document.text for document in _documents(TRAINING_MODULES)), VOCAB_SIZE, data.tokenizer)
    for prefix, modules in ((data.train, TRAINING_MODULES), (data.held_out, HELD_OUT_MODULES)):
        tokenize_corpus(_documents(modules), data.tokenizer, prefix)
    return data


def _documents(modules: tuple[str, ...]) -> list[Document]:
    library = Path(sysconfig.get_path("stdlib"))
    paths = [library / f"{module}.py" for module in modules]
    return [Document(path.name, path.read_text(encoding="utf-8"), str(path)) for path in paths]
