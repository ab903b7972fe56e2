"""The data of configs/curriculum_local.yaml: three sources from this Python's own standard library, in half a minute.

    python examples/curriculum/make_data.py [directory]

`packages` and `modules` are code, `docstrings` are conversations made of a few modules' documentation. The run draws
from them in other shares in each phase. Everything lies in runs/curriculum/data unless another directory is given, and
what an earlier call has written there is replaced.
"""

import sys
from pathlib import Path

from glmforge.data.chat.shard import tokenize_conversations
from glmforge.data.documents.document import split_held_out
from glmforge.data.tokens.bpe import train_tokenizer
from glmforge.data.tokens.shards import ShardInfo
from glmforge.data.tokens.tokenize import tokenize_corpus
from glmforge.recipes.demo.docstrings import docstring_conversations
from glmforge.recipes.demo.standard_library import standard_library_documents

VOCAB_SIZE = 4096
HELD_OUT = 0.05
DOCUMENTED = 50
"""Modules whose docstrings are taken: so few that the cap on epochs has something to do."""


def make_data(directory: Path) -> None:
    """Tokenizer, three shards, and two held-out ones, in `directory`."""
    tokenizer = directory / "tokenizer"
    training, held_out = split_held_out(standard_library_documents(), HELD_OUT)
    train_tokenizer((document.text for document in training), VOCAB_SIZE, tokenizer, overwrite=True)

    packages = [document for document in training if "/" in document.id]
    modules = [document for document in training if "/" not in document.id]
    parts = {"packages": packages, "modules": modules, "modules-held-out": list(held_out)}
    for name, documents in parts.items():
        _tell(name, tokenize_corpus(documents, tokenizer, directory / name, overwrite=True))

    parts = {"docstrings": modules[:DOCUMENTED], "docstrings-held-out": list(held_out)}
    for name, documents in parts.items():
        conversations = docstring_conversations(documents)
        _tell(name, tokenize_conversations(conversations, tokenizer, directory / name, overwrite=True))


def _tell(name: str, info: ShardInfo) -> None:
    print(f"{name}: {info.num_documents:,} documents, {info.num_tokens:,} tokens")


if __name__ == "__main__":
    make_data(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/curriculum/data"))
