"""The last step of a search for a layout: dry runs of the fastest, until one is seen to fit.

Closed forms rank thousands of layouts and are off by some percent; the dry run of the few that matter is exact.
"""

from collections.abc import Callable
from dataclasses import dataclass

from glmforge.dryrun.run import DryRun, dry_run
from glmforge.plan.search.search import Candidate, SearchResult


@dataclass(frozen=True)
class Confirmed:
    """A candidate whose dry run fits, after `refuted` others that did not; `run` is None where none can be done."""

    candidate: Candidate
    run: DryRun | None
    refuted: tuple[tuple[Candidate, DryRun], ...]

    @property
    def peak(self) -> int:
        """Bytes of the rank that needs most."""
        return self.run.peak if self.run else self.candidate.memory.peak


def confirm(
    result: SearchResult, *, most: int = 3, progress: Callable[[str], None] = lambda line: None
) -> Confirmed | None:
    """The fastest layout of `result` that fits by its dry run; None if none of the first `most` tried does.

    The closed form stands for `parallel.cpu_offload`, as a dry run cannot tell device and host memory apart, and for
    stages that train something else than the whole model, as it cannot take their step.
    """
    refuted: list[tuple[Candidate, DryRun]] = []
    for candidate in result.ranked:
        if candidate.config.parallel.cpu_offload or not result.stage.is_plain:
            return Confirmed(candidate, None, tuple(refuted))
        if len(refuted) == most:
            return None
        found = dry_run(candidate.config, result.world_size, progress=progress)
        if found.peak <= result.memory_limit:
            return Confirmed(candidate, found, tuple(refuted))
        progress(f"needs {found.peak / 1e9:.1f} GB, not {candidate.memory.peak / 1e9:.1f}: the next one")
        refuted.append((candidate, found))
    return None
