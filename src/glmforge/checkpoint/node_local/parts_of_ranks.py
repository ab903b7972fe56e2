"""Checkpoints on nodes' own disks: what each rank wrote of a step, and when all of it is there.

    <local_dir>/<run name>/step-00000140/__3_0.distcp       what rank 3 wrote
                                         part-00003.json    size and checksum of it; written last

No node sees the others' disks, so no single file can say that the step is complete. Each rank says it of its own
files, in `part-<rank>.json`, which appears under its name when the files are on the disk. A step is whole when the
parts of all ranks of one save are there and their files match. The files of all nodes in one directory, with a
manifest made of the parts' records, are an ordinary checkpoint.

Where ranks hold copies of each other's state, fewer than all may be enough: a part then says itself which ranks' parts
are (`Part.sufficient`).

A step may be saved again, after a return to an older one, and a node may have missed that: parts belong together only
if they name the same save.
"""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from pydantic import Field, NonNegativeInt, PositiveInt, ValidationError

from glmforge.checkpoint.format.manifest import FileName, FileRecord, find_file_problems
from glmforge.checkpoint.format.wording import describe_invalid
from glmforge.config.model import Strict
from glmforge.errors import CheckpointError
from glmforge.files import read_bytes
from glmforge.runtime.durable import fsync_directory, write_durably

PART_FORMAT = 1


class Part(Strict):
    """The contents of `part-<rank>.json`: what one rank wrote of one save."""

    format: int = PART_FORMAT
    step: NonNegativeInt
    rank: NonNegativeInt
    world_size: PositiveInt
    ephemeral: bool
    save: str = ""
    """The same for all ranks of one save, another one whenever the step is saved again."""
    sufficient: list[list[NonNegativeInt]] = Field(default=[])
    """Sets of ranks: the parts of each set alone are a checkpoint. Empty: it takes the parts of all ranks."""
    files: dict[FileName, FileRecord]

    @property
    def enough(self) -> list[set[int]]:
        """The sets of ranks whose parts are a checkpoint."""
        return [set(ranks) for ranks in self.sufficient] or [set(range(self.world_size))]


def local_root(local_dir: Path, run_name: str) -> Path:
    """Directory of a run's checkpoints on a node's own disk."""
    return local_dir / run_name


def part_name(rank: int) -> str:
    """Name of a rank's part."""
    return f"part-{rank:05d}.json"


def write_part(directory: Path, part: Part) -> None:
    """Write the part such that it has its name only when it is whole. Its files must be on the disk already."""
    file = directory / part_name(part.rank)
    partial = file.with_name(f".{file.name}.partial")
    write_durably(partial, part.model_dump_json(indent=1))
    partial.rename(file)
    fsync_directory(directory)


def read_part(file: Path) -> Part:
    """Read a `part-<rank>.json`. Raises `CheckpointError` if it is damaged or cannot be read."""
    content = read_bytes(file, error=CheckpointError)
    try:
        part = Part.model_validate_json(content)
    except ValidationError as error:
        raise CheckpointError(
            f"{file}: is not a rank's part of a checkpoint ({describe_invalid(error)[1]}); it is damaged"
        ) from error
    if part.format != PART_FORMAT:
        raise CheckpointError(
            f"{file}: format {part.format}, but this glmforge reads {PART_FORMAT}; use a newer glmforge"
        )
    if file.name != part_name(part.rank):
        raise CheckpointError(f"{file}: is the part of rank {part.rank}; renamed or damaged")
    return part


def read_parts(directory: Path) -> tuple[list[Part], list[str]]:
    """The parts in a step's directory of one node, in the order of ranks, and one line for each unreadable one."""
    parts, problems = [], []
    for file in list_present(directory, "part-*.json"):
        try:
            parts.append(read_part(file))
        except CheckpointError as error:
            problems.append(str(error))
    return parts, problems


def list_present(directory: Path, pattern: str) -> list[Path]:
    """The files of `directory` that match, sorted; none if another rank is renaming it away just now.

    `Path.glob` alone looks whether the directory is there, then opens it, and raises if it goes in between.
    """
    try:
        return sorted(directory.glob(pattern))
    except FileNotFoundError:
        return []


def find_part_problems(directory: Path, part: Part, *, checksums: bool) -> list[str]:
    """What is wrong with the files of a part in `directory`, one line per file; empty if they match."""
    return find_file_problems(directory, part.files, part_name(part.rank), checksums=checksums)


def whole_saves(parts: Iterable[Part]) -> list[list[Part]]:
    """Of parts of one step from all nodes: those saves of which enough is there, each by the first set of ranks that
    is, in the order of ranks.

    Normally that is one or none. Copies of a part (of a node asked twice) count once. Whether the files match must
    have been checked where they are.
    """
    of_save: dict[tuple[str, int, int], dict[int, Part]] = defaultdict(dict)
    for part in parts:
        of_save[part.save, part.step, part.world_size][part.rank] = part
    return [
        [of_rank[rank] for rank in sorted(ranks)]
        for of_rank in of_save.values()
        if (ranks := next((ranks for ranks in next(iter(of_rank.values())).enough if ranks <= of_rank.keys()), None))
    ]


def missing_ranks(parts: Iterable[Part]) -> list[int]:
    """The ranks whose parts lack to the save that most of `parts` belong to; empty if it is whole."""
    of_save: dict[tuple[str, int], dict[int, Part]] = defaultdict(dict)
    for part in parts:
        of_save[part.save, part.world_size][part.rank] = part
    of_rank = max(of_save.values(), key=len)
    lacking = [ranks - of_rank.keys() for ranks in next(iter(of_rank.values())).enough]
    return min((sorted(ranks) for ranks in lacking), key=len)


def merged_records(parts: Iterable[Part]) -> dict[str, FileRecord]:
    """The records of all parts of one save together: the manifest of the checkpoint that their files are."""
    return {name: record for part in parts for name, record in part.files.items()}
