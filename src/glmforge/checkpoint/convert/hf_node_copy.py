"""A Hugging Face directory copied to each node's own disk before it is loaded (`init_cache_dir`).

Ranks read their slices from all over the files, and of every node the same bytes several times. Shared storage serves
better one process of each node that reads every file once, from beginning to end; a later start finds the copies.
"""

import re
from contextlib import nullcontext
from pathlib import Path

from glmforge.checkpoint.collective import rank, run_each_unhurried
from glmforge.checkpoint.convert.hf_files import files_to_read
from glmforge.data.copies import Copy, copy_missing
from glmforge.data.files import alone_in
from glmforge.errors import CheckpointError, DataError
from glmforge.observe.units import format_bytes
from glmforge.observe.work_progress import work_progress
from glmforge.runtime.launch import LaunchEnvironment
from glmforge.runtime.place import place_for

_FIRST_LINE = 10**10  # bytes, before which no line of progress is written
_SHA256 = re.compile(r"[0-9a-f]{64}")


def copy_to_node(directory: Path, cache_dir: Path) -> Path:
    """The copy of `directory` in `cache_dir`, with all files that loading reads. All ranks call this together.

    The first process of each node copies what has no good copy, under a lock, since another run may do the same. Raises
    `CheckpointError` on all ranks if an original is missing or damaged, or there is too little space.
    """
    target = place_for(directory, cache_dir)

    def copy() -> None:
        if not LaunchEnvironment.read().is_first_of_node:
            return
        try:
            _copy(directory, target, cache_dir)
        except DataError as error:  # of the kind that all ranks hear of
            raise CheckpointError(str(error)) from error

    run_each_unhurried(copy)
    return target


def _copy(directory: Path, target: Path, cache_dir: Path) -> None:
    files = [
        Copy(file, target / file.relative_to(directory), noted_checksum(file, directory))
        for file in files_to_read(directory)
    ]
    what = f"copying {directory} to {target}"
    shown = work_progress(what, _FIRST_LINE) if rank() == 0 else nullcontext(lambda done, text: None)
    with alone_in(cache_dir), shown as show:
        copy_missing(
            files,
            cache_dir,
            setting="init_cache_dir",
            what="weights",
            advance=lambda done, total: show(done, f"{format_bytes(done)} of {format_bytes(total)}"),
        )


def noted_checksum(file: Path, directory: Path) -> str | None:
    """The SHA-256 that huggingface_hub noted of a large file that it downloaded; None of any other.

    In its cache that is the name of what the file is a link to; in a custom directory (`local_dir`) it stands in
    `.cache/huggingface/download`, and counts unless the file was changed later.
    """
    notes = directory / ".cache" / "huggingface" / "download" / f"{file.relative_to(directory)}.metadata"
    checksum = file.resolve().name
    if notes.is_file():
        _, checksum, time = (*notes.read_text().splitlines(), "", "", "")[:3]
        if not re.fullmatch(r"\d+(\.\d*)?", time) or file.stat().st_mtime > float(time) + 1:
            return None
    return checksum if _SHA256.fullmatch(checksum) else None
