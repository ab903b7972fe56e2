"""What lies on the nodes' own disks, as all ranks together see it.

A directory of the same name is another one on each node. Ranks that see the same directory are of one *place*; the
first of them tells the others what lies there, and all of them share the work of checking and copying it. With one
place for all ranks, as on a single node, a checkpoint can be read where it is.
"""

import socket
from dataclasses import dataclass
from pathlib import Path

from glmforge.checkpoint.collective import all_gather, rank, run_each, run_together
from glmforge.checkpoint.format.store import checkpoint_path, list_checkpoints, step_of
from glmforge.checkpoint.format.wording import list_some
from glmforge.checkpoint.node_local.parts_of_ranks import (
    Part,
    find_part_problems,
    missing_ranks,
    part_name,
    read_part,
    read_parts,
    whole_saves,
)
from glmforge.errors import CheckpointError


@dataclass(frozen=True)
class LocalStep:
    """A step of which some node has a part. `parts_at` says which parts of one save lie at which place."""

    step: int
    parts_at: tuple[tuple[Part, ...], ...]
    """For each place the parts that count there, without the records of their files."""
    problems: tuple[str, ...]
    is_everywhere: bool = False
    """Whether each place has a copy, so that every rank can read it where it is."""

    @property
    def parts(self) -> list[Part]:
        return [part for parts in self.parts_at for part in parts]

    @property
    def is_incomplete(self) -> bool:
        return not whole_saves(self.parts)

    @property
    def ephemeral(self) -> bool:
        return self.parts[0].ephemeral

    def describe(self) -> str:
        """What makes it incomplete."""
        missing = [f"rank {r}" for r in missing_ranks(self.parts)] if self.parts else ["all ranks"]
        reasons = [f"the parts of {list_some(missing)} are on none of this run's nodes", *self.problems]
        return list_some(reasons, "; ")


def survey(root: Path) -> list[LocalStep]:
    """The steps of which there are parts in any node's `root`, newest first. All ranks call this together.

    Sizes of files are checked, checksums are not. Of several saves of a step only the whole one counts.
    """
    first_ranks = sorted(set(_first_ranks(root)))
    listings = run_together(lambda: _list(root) if rank() in first_ranks else {})
    at_places = [listings[r] for r in first_ranks]
    steps = sorted({step for listing in at_places for step in listing}, reverse=True)
    return [_combine(step, [listing.get(step, ([], [])) for listing in at_places]) for step in steps]


def is_one_place(root: Path) -> bool:
    """Whether all ranks see the same `root`. All ranks call this together."""
    return len(set(_first_ranks(root))) == 1


def own_share(root: Path, found: LocalStep) -> list[Part]:
    """Those parts of a whole step that this rank is to check or to copy. All ranks call this together.

    Raises `CheckpointError`, on all ranks the same, if the parts are no longer what they were.
    """
    first = _first_ranks(root)
    own = [r for r, first_rank in enumerate(first) if first_rank == first[rank()]]
    place = sorted(set(first)).index(first[rank()])
    held: set[int] = (
        set()
    )  # a part that lies at two places, on nodes that share the directory after all, is of the first
    for parts in found.parts_at[:place]:
        held |= {part.rank for part in parts}
    here = [part.rank for part in found.parts_at[place] if part.rank not in held]
    directory = checkpoint_path(root, found.step)
    share = here[own.index(rank()) :: len(own)]
    return run_each(lambda: [read_part(directory / part_name(r)) for r in share])


def find_local_problems(root: Path, found: LocalStep) -> list[str]:
    """What is wrong with a step's files, checksums included. All ranks call this together, and get the same."""
    directory = checkpoint_path(root, found.step)
    try:
        share = own_share(root, found)
    except CheckpointError as error:
        return [str(error)]
    problems = run_together(lambda: [p for part in share for p in find_part_problems(directory, part, checksums=True)])
    return sorted({problem for of_rank in problems for problem in of_rank})


def _first_ranks(root: Path) -> list[int]:
    """For each rank the first rank of its place."""
    places = all_gather(place_of(root))
    return [places.index(place) for place in places]


def place_of(root: Path) -> tuple[str, ...]:
    """Equal for ranks that see the same directory."""
    try:
        status = root.stat()
    except OSError:
        return socket.gethostname(), str(root.absolute())
    return socket.gethostname(), str(status.st_dev), str(status.st_ino)


def _list(root: Path) -> dict[int, tuple[list[Part], list[str]]]:
    """Step -> parts in a node's `root` whose files have the right sizes, without records, and what is wrong."""
    found: dict[int, tuple[list[Part], list[str]]] = {}
    for directory in list_checkpoints(root):
        parts, problems = read_parts(directory)
        good = []
        for part in parts:
            wrong = find_part_problems(directory, part, checksums=False)
            problems += wrong
            if not wrong:
                good.append(part.model_copy(update={"files": {}}))
        found[step_of(directory)] = (good, problems)
    return found


def _combine(step: int, at_places: list[tuple[list[Part], list[str]]]) -> LocalStep:
    saves = whole_saves(part for parts, _ in at_places for part in parts)
    chosen = saves[0] if saves else []
    of_save = [[part for part in parts if not chosen or _is_of(chosen[0], part)] for parts, _ in at_places]
    everywhere = bool(chosen) and all(whole_saves(parts) for parts in of_save)
    ranks = {part.rank for part in chosen}  # of one copy: the others would come to lie beside it

    def counts(part: Part) -> bool:
        return not chosen or everywhere or part.rank in ranks

    return LocalStep(
        step,
        tuple(tuple(filter(counts, parts)) for parts in of_save),
        tuple(problem for _, problems in at_places for problem in problems),
        everywhere,
    )


def _is_of(save: Part, part: Part) -> bool:
    return (part.save, part.world_size) == (save.save, save.world_size)
