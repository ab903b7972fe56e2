"""Collect a checkpoint that lies in pieces on the nodes' own disks: fetch, verify, publish, clean up.

    <run>/checkpoints/.consolidate/        being assembled; the name is always the same

The run's directory is locked during that time (`glmforge.runtime.lease`): no run and no other such command works there.
It may die at any moment and be run again. What has arrived is known from its checksum, not from a record, so it is not
fetched twice and nothing is believed that a power failure may have taken back. The directory gets its name when all of
it is on the disk. Local copies are removed only after the checkpoint under its name has been read back once more, and
a command that finds it there already goes on with just that.
"""

import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from glmforge.checkpoint.format.manifest import (
    FileRecord,
    find_problems,
    read_manifest,
    record_file,
    summarize_problems,
    write_manifest,
)
from glmforge.checkpoint.format.meta import META_FILE, read_meta, write_meta
from glmforge.checkpoint.format.store import checkpoint_path, list_checkpoints, publish, step_of
from glmforge.checkpoint.format.verify import verify_checkpoint
from glmforge.checkpoint.format.wording import list_some
from glmforge.checkpoint.node_local.parts_of_ranks import (
    Part,
    merged_records,
    missing_ranks,
    part_name,
    read_parts,
    whole_saves,
)
from glmforge.checkpoint.node_local.transfer import Host, Transfers
from glmforge.errors import CheckpointError, GlmforgeError, HostError
from glmforge.observe.units import format_bytes
from glmforge.runtime.lease import Lease
from glmforge.runtime.os_errors import describe_os_error
from glmforge.runtime.traces import scratch_prefix

logger = logging.getLogger(__name__)

Report = Callable[[str, int, int], None]
"""Called from several threads with a host, the bytes that have come from it and those that are to come in all."""


class _DamagedError(CheckpointError):
    """A file is not what its rank wrote."""


@dataclass(frozen=True)
class Consolidated:
    """What was done. `fetched_bytes` are those that came over now, `removed_from` the hosts without a copy now."""

    path: Path
    num_files: int
    num_bytes: int
    fetched_bytes: int
    seconds: float
    removed_from: tuple[str, ...]


@dataclass(frozen=True)
class _Inventory:
    """What a host has: the parts of each step, and what is wrong with others."""

    host: Host
    parts: Mapping[int, list[Part]]
    problems: Mapping[int, list[str]]


def consolidate(
    root: Path,
    local_root: Path,
    hosts: Sequence[Host],
    transfers: Transfers,
    *,
    step: int | None = None,
    keep_local: bool = False,
    report: Report = lambda host, done, total: None,
) -> Consolidated | None:
    """Make `<root>/step-N` of what lies in `<local_root>/step-N` on `hosts`, and remove it there.

    `step` is the newest that is whole over all hosts if None, and whose files arrive as they were written; the result
    is None if `root` has a newer one already.
    `root` may hold that checkpoint already. Raises `CheckpointError`, and `HostError` for what a host cannot
    do: nothing has then been published or removed that was incomplete.
    """
    started = time.monotonic()
    with Lease(root.parent, "glmforge checkpoint consolidate"):
        inventories = transfers.for_each(lambda host: _take_inventory(host, local_root), hosts)
        steps = [step] if step is not None else _newest_first(root, inventories)
        final, fetched = None, 0
        if steps:
            step, fetched = _first_sound(root, local_root, inventories, steps, transfers, report)
            final = checkpoint_path(root, step)
        else:
            shutil.rmtree(_staging(root), ignore_errors=True)
        if not keep_local:
            name = final.name if final is not None else None
            transfers.for_each(lambda host: host.remove(PurePosixPath(local_root), name), hosts)
    if final is None:
        return None
    removed = () if keep_local else tuple(i.host.name for i in inventories if step in i.parts)
    files = read_manifest(final).files
    num_bytes = sum(record.size for record in files.values())
    return Consolidated(final, len(files), num_bytes, fetched, time.monotonic() - started, removed)


def _take_inventory(host: Host, local_root: Path) -> _Inventory:
    parts: dict[int, list[Part]] = {}
    problems: dict[int, list[str]] = {}
    with tempfile.TemporaryDirectory(prefix=scratch_prefix("parts")) as empty:
        below = host.fetch_matching(PurePosixPath(local_root), "step-*/part-*.json", Path(empty))
        for directory in list_checkpoints(below):
            found, unreadable = read_parts(directory)
            of_step = step_of(directory)
            if wrong := [part for part in found if part.step != of_step]:
                unreadable.append(f"{directory.name}/{part_name(wrong[0].rank)} belongs to another step")
            parts[of_step] = [part for part in found if part not in wrong]
            problems[of_step] = [f"{host.name}: {p.replace(str(below), str(local_root))}" for p in unreadable]
    return _Inventory(host, parts, problems)


def _parts_of(inventories: Iterable[_Inventory], step: int) -> list[Part]:
    return [part for inventory in inventories for part in inventory.parts.get(step, [])]


def _newest_first(root: Path, inventories: Sequence[_Inventory]) -> list[int]:
    """The steps that are whole, or published and not yet cleaned up, newest first; those that are older than one that
    `root` has are omitted."""
    published = [step_of(path) for path in list_checkpoints(root) if not find_problems(path, checksums=False)]
    steps = sorted({step for inventory in inventories for step in inventory.parts}, reverse=True)
    found: list[int] = []
    passed_over: list[str] = []
    for step in steps:
        parts = _parts_of(inventories, step)
        if whole_saves(parts) or (parts and _is_published(checkpoint_path(root, step), parts)):
            for reason in passed_over if not found else ():
                logger.warning("%s; using step %d", reason, step)
            found.append(step)
        else:
            passed_over.append(_why_not_whole(inventories, step))
    if not found and not published:
        hosts = list_some([inventory.host.name for inventory in inventories])
        raise CheckpointError(passed_over[0] if passed_over else f"no parts of checkpoints on any host ({hosts})")
    return [step for step in found if step >= max(published, default=0)]


def _first_sound(
    root: Path,
    local_root: Path,
    inventories: Sequence[_Inventory],
    steps: Sequence[int],
    transfers: Transfers,
    report: Report,
) -> tuple[int, int]:
    """Publish the first of `steps` whose files arrive as they were written, unless it is; it and the bytes fetched.

    If none does, raises what was wrong with the first one.
    """
    failures: list[GlmforgeError] = []
    for step in steps:
        final = checkpoint_path(root, step)
        if _is_published(final, _parts_of(inventories, step)) and not verify_checkpoint(final):
            return step, 0
        try:
            fetched = _collect(final, local_root, inventories, step, transfers, report)
        except (_DamagedError, HostError) as error:
            failures.append(error)
            if step != steps[-1]:
                logger.warning("step %d was not collected (%s); trying an older one", step, error)
            continue
        if problems := verify_checkpoint(final):
            raise CheckpointError(f"{final} is damaged, local copies are kept: {summarize_problems(problems)}")
        return step, fetched
    raise failures[0]


def _why_not_whole(inventories: Sequence[_Inventory], step: int) -> str:
    parts = _parts_of(inventories, step)
    problems = [problem for inventory in inventories for problem in inventory.problems.get(step, [])]
    hosts = list_some([inventory.host.name for inventory in inventories])
    if not parts:
        return f"step {step} is on none of the hosts ({hosts})" + (f": {problems[0]}" if problems else "")
    ranks = list_some([str(rank) for rank in missing_ranks(parts)])
    because = f": {problems[0]}" if problems else "; a host is missing, or its rank died while it saved"
    return f"step {step} is incomplete: the part of rank {ranks} is on none of the hosts ({hosts}){because}"


def _is_published(final: Path, parts: Iterable[Part]) -> bool:
    """Whether `final` is there and is the save that `parts` are of."""
    if find_problems(final, checksums=False):
        return False
    files = read_manifest(final).files
    return all(files.get(name) == record for name, record in merged_records(parts).items() if name != META_FILE)


def _staging(root: Path) -> Path:
    return root / ".consolidate"


def _collect(
    final: Path, local_root: Path, inventories: Sequence[_Inventory], step: int, transfers: Transfers, report: Report
) -> int:
    """Fetch the step into the hidden directory, finish it there and give it its name; returns the bytes fetched."""
    saves = whole_saves(_parts_of(inventories, step))
    if len(saves) != 1:
        raise CheckpointError(
            f"step {step} exists completely from {len(saves)} different saves; remove one, or choose another --step"
            if saves
            else _why_not_whole(inventories, step)
        )
    if not find_problems(final, checksums=False) and not _is_published(final, saves[0]):
        raise CheckpointError(f"{final} already exists from another save; move it away, or choose another --step")
    wanted, records = _assign(inventories, saves[0]), merged_records(saves[0])
    staging = _staging(final.parent)
    directory = PurePosixPath(local_root) / final.name
    try:
        staging.mkdir(parents=True, exist_ok=True)
        _check_space(staging, records)
        of_hosts = transfers.for_each(
            lambda host: _fetch(host, directory, wanted[host], staging, report),
            [host for host in wanted if wanted[host]],
        )
        _finish(staging, final, records)
    except OSError as error:
        raise CheckpointError(describe_os_error(error, f"writing {staging}")) from error
    return sum(of_hosts)


def _assign(inventories: Sequence[_Inventory], save: Sequence[Part]) -> dict[Host, dict[str, FileRecord]]:
    """Which host gives which files: the first that has a rank's part (a host may be named twice, or a disk shared)."""
    wanted: dict[Host, dict[str, FileRecord]] = {inventory.host: {} for inventory in inventories}
    for part in save:
        holder = next(i.host for i in inventories if part in i.parts.get(part.step, []))
        wanted[holder] |= part.files
    return wanted


def _check_space(staging: Path, records: Mapping[str, FileRecord]) -> None:
    there = sum(file.stat().st_size for file in staging.iterdir() if file.name in records)
    lacking = sum(record.size for record in records.values()) - there - shutil.disk_usage(staging).free
    if lacking > 0:
        raise CheckpointError(
            f"{staging.parent}: no space left on device: the checkpoint needs {format_bytes(lacking)} more"
        )


def _fetch(
    host: Host, directory: PurePosixPath, records: Mapping[str, FileRecord], staging: Path, report: Report
) -> int:
    """Bring what is not there yet, compare checksums and force it to the disk; returns the bytes that came."""
    total, came = sum(record.size for record in records.values()), 0
    lacking = [name for name in records if not _is_sound(staging / name, records[name])]
    there = total - sum(records[name].size for name in lacking)
    report(host.name, there, total)

    def advance(num_bytes: int) -> None:
        nonlocal came
        came += num_bytes
        report(host.name, min(there + came, total), total)

    for _ in range(2):  # a file that was damaged on its way, or by an earlier crash, gets a second chance
        if lacking:
            host.fetch(directory, lacking, staging, advance)
        lacking = [name for name in lacking if not _is_sound(staging / name, records[name])]
        for name in lacking:
            (staging / name).unlink(missing_ok=True)
    if lacking:
        raise _DamagedError(
            f"{host.name}: {directory / lacking[0]}: SHA-256 differs from what its rank wrote: it is damaged; take an "
            "older checkpoint with --step"
        )
    report(host.name, total, total)
    return came


def _is_sound(file: Path, record: FileRecord) -> bool:
    """Whether the file is what was recorded; it is then on the disk, too."""
    return file.is_file() and file.stat().st_size == record.size and record_file(file) == record


def _finish(staging: Path, final: Path, records: Mapping[str, FileRecord]) -> None:
    for stray in staging.iterdir():
        if stray.name not in records:  # of an earlier save of the same step
            shutil.rmtree(stray) if stray.is_dir() else stray.unlink()
    meta = read_meta(staging)
    if meta.ephemeral:  # collected manually, so kept
        write_meta(staging, meta.model_copy(update={"ephemeral": False}))
    write_manifest(staging, {**records, META_FILE: record_file(staging / META_FILE)})
    publish(staging, final)
