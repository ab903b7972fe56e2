"""A tokenizer and a token shard that Megatron-LM reads."""

import json
import subprocess
import sys
from pathlib import Path


def tokenised(directory: Path) -> None:
    """Write `tokenizer`, and the shard `text.bin` and `text.idx`."""
    text = directory / "documents.jsonl"
    lines = [f"The {number}th line of a text, and so on." for number in range(2000)]
    # Many documents: Megatron never ends to index a part of the split that gets none.
    text.write_text("".join(json.dumps({"text": "\n".join(lines[at : at + 10])}) + "\n" for at in range(0, 2000, 10)))
    for command in (
        ["tokenizer", str(text), "--vocab-size", "300", "--out", str(directory / "tokenizer")],
        ["tokenize", str(text), "--tokenizer", str(directory / "tokenizer"), "--out", str(directory / "text")],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "glmforge", "data", *command],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
