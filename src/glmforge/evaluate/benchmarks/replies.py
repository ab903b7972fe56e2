"""Replies to the requests of benchmarks, each kept when it arrives, so that a stopped evaluation resumes.

A reply is found by a digest of its request: prompt, settings, number of the sample. The directory belongs to one model
(`glmforge.evaluate.run` checks that). A file only grows; a line holds a checksum and a reply, and a damaged line is
skipped. Each process appends to a file of its own and reads all files at the start, so the number of ranks may change
in between.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO, Literal, Self

from glmforge.data.files import disk_errors


@dataclass(frozen=True)
class Reply:
    """A model's reply to one request.

    Attributes:
        kind: "text" that it wrote, or "score" of a given text.
        num_tokens: written or scored.
        num_prompt_tokens: before them.
        text: all that it wrote, reasoning included.
        finished: "stop", or "length" where the longest answer cut it.
        is_truncated: the prompt was too long for the model and lost its beginning.
        logprob: summed over the tokens, in nats; None if a server does not return it.
        is_greedy: each token of the scored text is the likeliest one.
        seconds: from the start of its batch.
    """

    kind: Literal["text", "score"]
    num_tokens: int
    num_prompt_tokens: int
    text: str = ""
    finished: Literal["stop", "length"] = "stop"
    is_truncated: bool = False
    logprob: float | None = None
    is_greedy: bool | None = None
    seconds: float = 0.0

    @property
    def is_cut(self) -> bool:
        return self.finished == "length"


_FIELDS = {field.name for field in fields(Reply)}


class ReplyStore:
    """The replies in `directory`, which one evaluation at a time writes to; a context manager.

    Args:
        directory: None keeps them in memory only.
        rank: of the process that appends; its file is named by it.

    Attributes:
        known: replies by the digest of their request.
    """

    def __init__(self, directory: Path | None, rank: int = 0) -> None:
        self._path = None if directory is None else directory / f"replies-{rank:04}.jsonl"
        self._file: BinaryIO | None = None
        self.known: dict[str, Reply] = {}
        for path in [] if directory is None else sorted(directory.glob("replies-*.jsonl")):
            with disk_errors(path), path.open("rb") as file:
                for line in file:
                    self._read(line)

    def __enter__(self) -> Self:
        if self._path is not None:
            with disk_errors(self._path):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self._path.open("ab+")
                if self._file.seek(0, 2):
                    self._file.seek(-1, 2)
                    self._file.write(b"" if self._file.read(1) == b"\n" else b"\n")  # ends a line that was cut
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, replies: Mapping[str, Reply]) -> None:
        """Keep those of these replies that are not known, in one piece: a kill leaves all of them or none."""
        new = {digest: reply for digest, reply in replies.items() if digest not in self.known}
        if self._path is not None:
            assert self._file is not None, "in `with store`"
            contents = [json.dumps({"request": digest} | asdict(reply)).encode() for digest, reply in new.items()]
            with disk_errors(self._path):
                self._file.write(b"".join(_checksum(content) + b" " + content + b"\n" for content in contents))
                self._file.flush()
        self.known.update(new)

    def _read(self, line: bytes) -> None:
        checksum, _, content = line.rstrip(b"\n").partition(b" ")
        if content and checksum == _checksum(content):
            record: dict[str, Any] = json.loads(content)
            self.known[record.pop("request")] = Reply(**{name: record[name] for name in record.keys() & _FIELDS})


def request_digest(kind: str, prompt: object, settings: Mapping[str, object], sample: int = 0) -> str:
    """The name that a request's reply is kept under.

    Args:
        prompt: token ids, or text for a server.
        settings: all else that the reply depends on, but the model.
    """
    content = json.dumps([kind, prompt, settings, sample], sort_keys=True)
    return hashlib.sha256(content.encode(errors="backslashreplace")).hexdigest()[:32]


def _checksum(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest()[:16].encode()
