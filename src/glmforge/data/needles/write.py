"""Needle tests as files: a token shard to train on, questions for any program, conversations.

A shard's documents are texts with their answers. A line of questions has `id`, `prompt`, `answers`, `task`, `length`
and `depth`; one of conversations has `messages` of a user and an assistant, who answers in a whole sentence.
"""

import json
import os
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from glmforge.data.files import discard_partial, disk_errors, open_partial, publish, refuse_unwritable
from glmforge.data.needles.build import NeedleTest, NeedleTests
from glmforge.data.tokens.shard_writer import ShardWriter
from glmforge.data.tokens.tokenizer import Tokenizer

Progress = Callable[[int], None]
"""Told how many tests are written."""


class NeedleFormat(StrEnum):
    """What needle tests are written as."""

    shard = "shard"
    questions = "questions"
    conversations = "conversations"


def write_needles(
    tests: NeedleTests, form: NeedleFormat, out: Path, *, overwrite: bool = False, progress: Progress = lambda _: None
) -> None:
    """Write all tests: a shard under the prefix `out`, or a JSONL file of that name, whole or not at all.

    Raises:
        DataError: `out` is there and `overwrite` is False, or cannot be written; the text has no sentences.
    """
    if form is NeedleFormat.shard:
        _write_shard(tests, out, overwrite, progress)
        return
    refuse_unwritable(out, overwrite)
    make = {NeedleFormat.questions: _question, NeedleFormat.conversations: _conversation}[form]
    with disk_errors(out), open_partial(out) as file:
        try:
            for test in _told(tests, progress):
                line = json.dumps(make(test, tests.tokenizer), ensure_ascii=False)
                file.write(f"{line}\n".encode())
            file.flush()
            os.fsync(file.fileno())
            publish(out)
        finally:
            discard_partial(out)


def _write_shard(tests: NeedleTests, prefix: Path, overwrite: bool, progress: Progress) -> None:
    tokenizer, num_text_bytes = tests.tokenizer, 0
    with ShardWriter(prefix, tokenizer.vocab_size, overwrite=overwrite) as writer:
        for test in _told(tests, progress):
            ids = np.array([*test.ids, tokenizer.end_of_text_id], np.int32)
            writer.add(ids, np.array([len(ids)]))
            num_text_bytes += len(tokenizer.decode(test.ids).encode())
        settings = tests.config.model_dump_json()
        writer.finish(tokenizer.fingerprint, f"needles in {tests.haystack.name}: {settings}", num_text_bytes)


def _told(tests: NeedleTests, progress: Progress) -> Iterator[NeedleTest]:
    for index in range(len(tests)):
        yield tests[index]
        progress(index + 1)


def _question(test: NeedleTest, tokenizer: Tokenizer) -> dict[str, Any]:
    key = test.key
    return {
        "id": f"{key.task}-{key.length}-{key.depth:g}-{key.example}",
        "prompt": tokenizer.decode(test.ids[: test.num_prompt]),
        "answers": [answer.text for answer in test.answers],
        "task": key.task,
        "length": key.length,
        "depth": key.depth,
    }


def _conversation(test: NeedleTest, tokenizer: Tokenizer) -> dict[str, Any]:
    asked, answered = test.ids[: test.num_text], test.ids[test.num_text :]
    return {
        "messages": [
            {"role": "user", "content": tokenizer.decode(asked)},
            {"role": "assistant", "content": tokenizer.decode(answered).strip()},
        ]
    }
