"""Write a checkpoint: all of it or, as far as anybody can see, nothing.

1. Rank 0 creates a hidden directory beside the final name.
2. Every rank writes its shards there, through torch.distributed.checkpoint (DCP). What several ranks hold, be
   it plain or a part of a DTensor, is written once, by the one of them that has least to write.
3. Every rank reads its files back from the disk and compares checksums, if that is wanted.
4. Rank 0 adds `meta.json` and the manifest and gives the directory its name.

A failure of any rank in any step makes all ranks raise the same `CheckpointError`; the hidden directory is
removed, and older checkpoints are not touched.

On nodes' own disks (`parts_of_ranks`) the steps are the same, but no rank sees all files: each writes where it is, and
what makes the checkpoint whole is the parts' list of every rank, written when all ranks have come so far. `promote`
puts such a checkpoint together on shared storage: the nodes copy their own files, compared on the way with what the
parts say, and rank 0 finishes as above.
"""

import hashlib
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from torch import Tensor

from glmforge.checkpoint.collective import broadcast, rank, run_each, run_on_rank_zero, run_together, world_size
from glmforge.checkpoint.format.manifest import FileRecord, check_written, find_problems, record_file, write_manifest
from glmforge.checkpoint.format.meta import META_FILE, CheckpointMeta, meta_text, write_meta
from glmforge.checkpoint.format.shards import write_shards
from glmforge.checkpoint.format.store import (
    checkpoint_path,
    delete_checkpoint,
    list_checkpoints,
    make_partial,
    partial_path,
    publish,
    remove_leftovers,
)
from glmforge.checkpoint.node_local.parts_of_ranks import Part, merged_records, part_name, write_part
from glmforge.checkpoint.source_files import write_files
from glmforge.errors import CheckpointError
from glmforge.runtime.durable import fsync_directory, fsync_file

RNG_PREFIX = "rng."  # generator states are stored among the tensors, one for each rank

_COPY_BYTES = 4 << 20

Advance = Callable[[], None]


def save_checkpoint(
    root: Path,
    step: int,
    tensors: Mapping[str, Tensor],
    meta: CheckpointMeta,
    *,
    rng_state: Tensor | None = None,
    files: Mapping[str, bytes] = {},
    verify: bool = False,
    advance: Advance = lambda: None,
) -> Path:
    """Write the checkpoint `<root>/step-<step>` and return its directory. All ranks call this together.

    `tensors` are this rank's, named as the loading run will ask for them ("model.<parameter>", "optim.<state>"):
    plain tensors or DTensors on any mesh. Ranks of other pipeline stages pass other names; a name that several
    ranks pass is the same tensor, cut into the same parts. `rng_state` (uint8) is this rank's own generator
    state; `files` are this rank's further files, under names that no other rank has. `advance` is called at every
    piece that is on its way to the disk. `verify=True` reads everything back from the disk before it is given its
    name. A checkpoint of the same step is replaced. Raises `CheckpointError`, on all ranks the same, if any rank cannot
    write.
    """
    assert step == meta.step, f"step {step} would be saved with the metadata of step {meta.step}"
    final = checkpoint_path(root, step)
    with _or_abandoned(final):
        _save_as(final, with_rng_state(tensors, rng_state), meta, files, verify=verify, advance=advance)
    return final


def save_tensors(directory: Path, tensors: Mapping[str, Tensor], meta: CheckpointMeta) -> None:
    """Write a checkpoint that belongs to no run's sequence of steps, in a directory of any name.

    All ranks call this together. What bears the name is replaced. Raises `CheckpointError`, on all ranks the same; then
    nothing is left of what was written.
    """
    try:
        _save_as(directory, dict(tensors), meta, {}, verify=False, advance=lambda: None)
    except CheckpointError as error:
        run_on_rank_zero(lambda: shutil.rmtree(partial_path(directory), ignore_errors=True))
        raise CheckpointError(f"{directory} was not saved: {error}") from error


def save_local(
    root: Path,
    step: int,
    tensors: Mapping[str, Tensor],
    meta: CheckpointMeta,
    *,
    rng_state: Tensor | None = None,
    files: Mapping[str, bytes] = {},
    verify: bool = False,
    advance: Advance = lambda: None,
) -> Part:
    """Write this rank's part of a checkpoint to `<root>/step-<step>` on the node's own disk. All ranks call this
    together, each with the `root` of its node.

    When this returns, the checkpoint is whole. Arguments and errors are as in `save_checkpoint`; after an error
    nothing is left of it on any node.
    """
    assert step == meta.step, f"step {step} would be saved with the metadata of step {meta.step}"
    directory = checkpoint_path(root, step)
    save = broadcast(uuid.uuid4().hex, 0)
    try:
        run_each(lambda: _remove_step(directory, meta))
        run_each(lambda: _make_directory(directory))
        records = write_shards(directory, with_rng_state(tensors, rng_state), advance=advance)

        def write_rest() -> None:
            records.update(write_files(directory, files))
            if rank() == 0:
                records[META_FILE] = _write_meta(directory, meta)
            if verify:
                check_written(directory, records, part_name(rank()))

        # No rank says that its part is there before all have come so far: a directory without parts is of no use.
        run_each(write_rest)
        part = Part(step=step, rank=rank(), world_size=world_size(), ephemeral=meta.ephemeral, save=save, files=records)
        run_each(lambda: write_part(directory, part))
    except CheckpointError as error:
        shutil.rmtree(directory, ignore_errors=True)  # without parts it is nothing; retention deletes what stays
        raise CheckpointError(f"{directory} was not saved: {error}") from error
    return part


def promote(
    root: Path,
    local_root: Path,
    step: int,
    parts: Iterable[Part],
    *,
    verify: bool = False,
    advance: Advance = lambda: None,
) -> Path:
    """Copy a checkpoint that lies on nodes' own disks to shared storage, `<root>/step-<step>`, and return that.

    All ranks call this together, each with those parts (of one save, in its node's `local_root`) that it is to copy.
    Raises `CheckpointError`, on all ranks the same; nothing is left of a copy that failed.
    """
    final, source = checkpoint_path(root, step), checkpoint_path(local_root, step)
    own = list(parts)
    with _or_abandoned(final):
        partial = run_on_rank_zero(lambda: make_partial(final))
        run_each(lambda: _copy_parts(source, partial, own, verify=verify, advance=advance))
        of_ranks = run_together(lambda: merged_records(own))
        run_on_rank_zero(lambda: _finish(partial, final, of_ranks))
    return final


def rng_name(of_rank: int) -> str:
    """Name under which the generator state of a rank is stored among the tensors."""
    return f"{RNG_PREFIX}{of_rank:05d}"


def with_rng_state(tensors: Mapping[str, Tensor], rng_state: Tensor | None) -> dict[str, Tensor]:
    """The tensors and, if given, this rank's generator state among them."""
    return dict(tensors) if rng_state is None else {**tensors, rng_name(rank()): rng_state}


@contextmanager
def _or_abandoned(final: Path) -> Iterator[None]:
    """If the block fails, remove what was written and say what the run can fall back on."""
    try:
        yield
    except CheckpointError as error:
        last = run_on_rank_zero(lambda: _abandon(final))
        raise CheckpointError(f"{final} was not saved: {error}. {last}") from error


def _save_as(
    final: Path,
    tensors: dict[str, Tensor],
    meta: CheckpointMeta,
    files: Mapping[str, bytes],
    *,
    verify: bool,
    advance: Advance,
) -> None:
    partial = run_on_rank_zero(lambda: _begin(final, meta))
    records = write_shards(partial, tensors, advance=advance)

    def write_rest() -> dict[str, FileRecord]:
        records.update(write_files(partial, files))
        if verify:
            check_written(partial, records, "what was written")
        return records

    of_ranks = run_together(write_rest)
    run_on_rank_zero(lambda: _write_meta_and_finish(partial, final, meta, of_ranks, verify=verify))


def _begin(final: Path, meta: CheckpointMeta) -> Path:
    meta_text(meta)  # refused before anything is written
    return make_partial(final)


def _write_meta_and_finish(
    partial: Path, final: Path, meta: CheckpointMeta, of_ranks: list[dict[str, FileRecord]], *, verify: bool
) -> None:
    record = {META_FILE: _write_meta(partial, meta)}
    if verify:
        check_written(partial, record, "what was written")
    _finish(partial, final, [*of_ranks, record])


def _write_meta(directory: Path, meta: CheckpointMeta) -> FileRecord:
    write_meta(directory, meta)
    return record_file(directory / META_FILE)


def _finish(partial: Path, final: Path, of_ranks: list[dict[str, FileRecord]]) -> None:
    files = {name: record for records in of_ranks for name, record in records.items()}
    for name in files:
        if not (partial / name).exists():
            raise CheckpointError(
                f"{partial / name} is not visible from rank 0; output_dir must be on storage that all nodes share"
            )
    write_manifest(partial, files)
    publish(partial, final)


def _abandon(final: Path) -> str:
    shutil.rmtree(partial_path(final), ignore_errors=True)  # what stays is removed by the next save
    whole = (path for path in list_checkpoints(final.parent) if not find_problems(path, checksums=False))
    last = next(whole, None)
    return f"The last complete checkpoint is {last.name}" if last else "There is no older checkpoint"


def _remove_step(directory: Path, meta: CheckpointMeta) -> None:
    """Several ranks of a node may do this at the same time: one of them succeeds."""
    if rank() == 0:
        meta_text(meta)  # refused before anything is written
    with suppress(FileNotFoundError):
        delete_checkpoint(directory)


def _make_directory(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    remove_leftovers(directory)
    fsync_directory(directory.parent)


def _copy_parts(source: Path, partial: Path, parts: list[Part], *, verify: bool, advance: Advance) -> None:
    for part in parts:
        for name, record in part.files.items():
            _copy_file(source / name, partial / name, record, part_name(part.rank), advance)
        if verify:
            check_written(partial, part.files, part_name(part.rank))


def _copy_file(source: Path, target: Path, record: FileRecord, said_by: str, advance: Advance) -> None:
    """Copy a file and force it to the disk, unless its contents turn out not to be those recorded."""
    digest = hashlib.sha256()
    with source.open("rb") as reading, target.open("wb") as writing:
        while chunk := reading.read(_COPY_BYTES):
            digest.update(chunk)
            writing.write(chunk)
            advance()
    if digest.hexdigest() != record.sha256:
        raise CheckpointError(f"{source}: SHA-256 differs from {said_by}: it is damaged")
    fsync_file(target)
