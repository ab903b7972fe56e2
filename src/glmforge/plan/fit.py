"""Does a run fit the memory that there is? `fits` answers for all that start runs: it knows every model of the stage.

What is missing is said in words, with the settings that would save most.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from glmforge.config.layout import Layout
from glmforge.config.schema import RunConfig
from glmforge.observe.units import counted, gigabytes
from glmforge.plan.memory.changes import helpful_changes, words_of
from glmforge.plan.memory.estimate import estimate_memory
from glmforge.plan.memory.purposes import Memory
from glmforge.plan.stages.stage import stage_of


@dataclass(frozen=True)
class Capacity:
    """Memory that there is.

    Attributes:
        bytes: of a GPU, or of a machine whose ranks have none.
        owner: whose it is, with a verb: "an H100 has".
        machines: without GPUs, the ranks of each machine, which share its memory; empty: each rank has a GPU.
        place: of these ranks: "of a node".
    """

    bytes: int
    owner: str
    machines: Sequence[range] = ()
    place: str = ""


@dataclass(frozen=True)
class Fit:
    """`planned`: of the ranks that need most of what they share. `missing`: why it does not fit, None if it does."""

    planned: Memory
    missing: str | None


def fits(config: RunConfig, layout: Layout, capacity: Capacity) -> Fit:
    """Whether the first phase of `config` fits, with all models that its stage holds in memory."""
    estimate = estimate_memory(config, layout, stage_of(config))
    peaks = [place.at_peak for place in estimate.places]
    sharing = [
        (f"{counted(len(ranks), 'rank')} {capacity.place}", [peaks[rank // layout.stage_ranks] for rank in ranks])
        for ranks in capacity.machines
    ] or [(f"a rank of pipeline stage {place}", [peak]) for place, peak in enumerate(peaks)]
    needs = [(who, sum(together, Memory())) for who, together in sharing]
    who, planned = max(needs, key=lambda need: need[1].total())
    if planned.total() <= capacity.bytes:
        return Fit(planned, None)
    largest = ", ".join(f"{purpose} {gigabytes(size)}" for purpose, size in planned.most_common(3))
    changes = words_of(helpful_changes(config, layout.world_size, offload=not capacity.machines))
    need = f"{who} would need {gigabytes(planned.total())} ({largest}), {capacity.owner} {gigabytes(capacity.bytes)}"
    return Fit(planned, f"phase '{config.phases[0].name}' does not fit: {need}; {changes}")
