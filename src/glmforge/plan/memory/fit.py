"""What is missing where a phase does not fit the memory that there is, in words."""

from glmforge.config.layout import Layout
from glmforge.config.schema import RunConfig
from glmforge.observe.units import gigabytes
from glmforge.plan.memory.changes import helpful_changes, words_of
from glmforge.plan.memory.purposes import Memory


def shortfall(
    config: RunConfig, layout: Layout, planned: Memory, capacity: int, *, who: str, has: str, on_gpu: bool
) -> str | None:
    """What the first phase needs that there is not, and what would help; None if it fits.

    Args:
        planned: at its peak, of those that share `capacity` bytes: `who`, as in "a rank".
        has: of whom the capacity is, with its verb: "an H100 has".
        on_gpu: whether memory could be moved to the host.
    """
    if planned.total() <= capacity:
        return None
    largest = ", ".join(f"{purpose} {gigabytes(size)}" for purpose, size in planned.most_common(3))
    changes = words_of(helpful_changes(config, layout.world_size, offload=on_gpu))
    need = f"{who} would need {gigabytes(planned.total())} ({largest}), {has} {gigabytes(capacity)}"
    return f"phase '{config.phases[0].name}' does not fit: {need}; {changes}"
