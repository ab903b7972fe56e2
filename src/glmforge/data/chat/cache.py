"""Encoded conversations that are kept: a run may name the file of records, and encodes it once.

What is kept is a token shard with loss weights, under a name that has in it everything that it depends on: the file's
bytes, the tokenizer with its template, and the settings. So nothing stale is ever found, and a run
that goes on finds what it began with. Next to it is a summary of the records, shown again at every start.

A process that finds nothing encodes under a lock of the directory and publishes whole files; a second process, of this
run or another one, waits and then finds all there. Old files are never deleted.
"""

import hashlib
import json
import logging
import os
from pathlib import Path

from glmforge.config.chat import ChatConfig
from glmforge.data.chat.tokenize import tokenize_chat
from glmforge.data.files import alone_in, write_whole
from glmforge.data.tokens.shards import TokenShard, loss_path, shard_paths
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import DataError
from glmforge.files import read_json

logger = logging.getLogger(__name__)

_VERSION = 2
"""Of what encoding makes of a record; one more whenever that changes."""


def encoded_identity(path: Path, tokenizer: Tokenizer, config: ChatConfig) -> bytes:
    """16 bytes that depend on what the encoding of a file depends on; reads all of it."""
    try:
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}): check the path") from error
    parts = {
        "version": _VERSION,
        "content": content,
        "tokenizer": tokenizer.fingerprint,
        "template": tokenizer.chat_template,
        "settings": config.model_dump(),
    }
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).digest()


def encoded_prefix(path: Path, identity: bytes, directory: Path | None = None) -> Path:
    """The shard in which the encoding of a file is kept: in `directory`, or beside the file."""
    return (directory or path.parent) / f"{path.name}.tokens-{identity.hex()[:16]}"


def ensure_encoded(
    path: Path,
    tokenizer_dir: Path,
    config: ChatConfig,
    identity: bytes,
    directory: Path | None = None,
    num_workers: int = 1,
) -> Path:
    """Encode a file of conversations unless that is done. Returns the shard's prefix.

    Raises:
        DataError: the records are refused (see `tokenize_chat`), or the directory cannot be written: `data.encoded_dir`
            names another.
    """
    prefix = encoded_prefix(path, identity, directory)
    if directory is None and not _is_there(prefix) and not os.access(path.parent, os.W_OK):
        raise DataError(
            f"{path.parent}: not writable, so encoded conversations cannot be cached there; set data.encoded_dir"
        )
    records_file = prefix.with_name(f"{prefix.name}.records.json")
    if not _is_there(prefix):
        with alone_in(prefix.parent):
            if not _is_there(prefix):
                _encode(path, tokenizer_dir, config, prefix, records_file, num_workers)
    try:
        TokenShard(prefix)
        content = read_json(records_file, dict, error=DataError) if records_file.is_file() else {}
    except DataError as error:
        raise DataError(f"{error} (cached from {path}; remove {prefix.name}.* to encode it again)") from None
    if content:
        logger.info("%s: %s", path, content.get("summary"))
    for problem in content.get("problems", []):
        logger.warning("skipped: %s", problem)
    return prefix


def _is_there(prefix: Path) -> bool:
    """A shard that lacks a file does not count."""
    return all(path.is_file() for path in (*shard_paths(prefix), loss_path(prefix)))


def _encode(
    path: Path, tokenizer_dir: Path, config: ChatConfig, prefix: Path, records_file: Path, num_workers: int
) -> None:
    logger.info("encoding the conversations of %s", path)
    _, report = tokenize_chat([path], tokenizer_dir, prefix, config, num_workers=num_workers, overwrite=True)
    content = {"summary": report.counts.summary(), "problems": report.problems}
    write_whole(records_file, f"{json.dumps(content, indent=1, ensure_ascii=False)}\n".encode())
