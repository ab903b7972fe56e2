"""When memory runs out: what there was of it, what the plan had said, and which changes would help.

The same step would fail again on the same layout, so the run ends, with one line for the user and an event for whatever
looks at the run afterwards. Weights, gradients and optimizer state are counted from the tensors that this rank holds.
The rest of what was in use is what a step makes and drops again (on a CPU also the process itself); how that divides
into activations, gathered weights and so on, only the plan can tell.

A process that the kernel ends for lack of memory says nothing: there the kernel's log tells.
"""

import logging
import resource
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from traceback import walk_tb

import torch
from torch import Tensor

from glmforge.config.layout import resolve_layout
from glmforge.config.schema import RunConfig
from glmforge.errors import GlmforgeError
from glmforge.observe.record_files import RunFileError
from glmforge.observe.run import record_event
from glmforge.observe.units import gigabytes
from glmforge.optim.sharding import local_part
from glmforge.parallel.world import World
from glmforge.plan.layout import select_phase
from glmforge.plan.memory.changes import helpful_changes, words_of
from glmforge.plan.memory.estimate import estimate_memory
from glmforge.plan.stages.stage import stage_of
from glmforge.runtime.memory import usable_memory
from glmforge.training.trainer import Trainer

logger = logging.getLogger(__name__)

EVENT = "out of memory"

_PHRASES = ("DefaultCPUAllocator", "out of memory", "bad_alloc")
"""In the words of errors about memory that have no class of their own: torch's CPU allocator, CUDA, NCCL, C++."""

_MOMENTS = {
    "torch.autograd.graph": "backward pass",
    "glmforge.optim": "update",
    "glmforge.checkpoint": "checkpoint",
    "glmforge.evaluate": "evaluation",
    "glmforge.model": "forward pass",
    "glmforge.kernels": "forward pass",
    "glmforge.parallel.build": "initial weights",
}
"""What goes on while code of these modules runs. The first that is found counts: backward passes run layers again."""


class OutOfMemory(GlmforgeError):
    """A device, or the machine, had no memory left for what the run does."""


@dataclass(frozen=True)
class Shortage:
    """Memory as it was on a rank when there was not enough of it, in bytes.

    Attributes:
        moment: what the rank was doing.
        weights, gradients, optimizer: what it held of them.
        peak: the most in use at once so far: by tensors on a GPU, by the whole process on a CPU.
        capacity: all there is, on a CPU for all processes of the machine together.
    """

    rank: int
    phase: str
    moment: str
    weights: int
    gradients: int
    optimizer: int
    peak: int
    capacity: int

    @property
    def words(self) -> str:
        held = f"weights {gigabytes(self.weights)}, gradients {gigabytes(self.gradients)}"
        held += f", optimizer state {gigabytes(self.optimizer)}"
        held = held if self.weights else "weights not counted"  # DeepSpeed's, which only all ranks together can ask for
        used = f"at most {gigabytes(self.peak)} of {gigabytes(self.capacity)} in use"
        return f"rank {self.rank}, phase '{self.phase}', {self.moment}: {held}; {used}"


class MemoryWatch:
    """The run whose memory may end; `trainer` is set as soon as there is one."""

    def __init__(self, config: RunConfig, world: World) -> None:
        self._config, self._world = config, world
        self.trainer: Trainer | None = None

    def explain(self, error: BaseException) -> OutOfMemory:
        """Write the event; what to tell the user."""
        trainer = self.trainer
        step = trainer.state.step if trainer is not None else 0
        shortage = self._shortage(error)
        planned = select_phase(self._config, shortage.phase)
        layout = resolve_layout(planned, self._world.size)
        place = estimate_memory(planned, layout, stage_of(planned)).places[self._world.rank // layout.stage_ranks]
        changes = helpful_changes(planned, layout.world_size, offload=self._world.device.type == "cuda")
        said = f"{shortage.words}; planned are {gigabytes(place.peak)} for this rank; {words_of(changes)}"
        facts = {
            **asdict(shortage),
            "planned": {str(purpose): size for purpose, size in place.at_peak.items()},
            "changes": {change.setting: change.peak for change in changes},
        }
        try:
            record_event(self._config.output_dir, EVENT, step=step, detail=said, facts=facts)
        except RunFileError as unwritable:
            logger.error("%s", unwritable)
        return OutOfMemory(f"out of memory: {said}")

    def _shortage(self, error: BaseException) -> Shortage:
        trainer, device = self.trainer, self._world.device
        has_stepped = trainer is not None and trainer.batch is not None
        return Shortage(
            self._world.rank,
            trainer.phase.name if trainer is not None and has_stepped else self._config.phases[0].name,
            moment_of(error),
            *(held_bytes(trainer) if trainer is not None and self._config.backend == "native" else (0, 0, 0)),
            peak=peak_bytes(device),
            capacity=capacity_bytes(device),
        )


@contextmanager
def explaining_out_of_memory(config: RunConfig, world: World) -> Iterator[MemoryWatch]:
    """Around everything a run does: running out of memory there is an event of the run, and an `OutOfMemory`."""
    watch = MemoryWatch(config, world)
    try:
        yield watch
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise watch.explain(error) from error


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether memory ran out, a GPU's or the host's. (Pipelines wrap what a stage raises.)"""
    while error is not None:
        said = isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in _PHRASES)
        if said or isinstance(error, torch.OutOfMemoryError | MemoryError):
            return True
        error = error.__cause__
    return False


def moment_of(error: BaseException | None) -> str:
    """What was going on when an error was raised."""
    running: set[str] = set()
    while error is not None:
        running |= {frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__)}
        error = error.__cause__
    for module, moment in _MOMENTS.items():
        if any(name == module or name.startswith(f"{module}.") for name in running):
            return moment
    return "between steps"


def held_bytes(trainer: Trainer) -> tuple[int, int, int]:
    """Bytes of this rank's weights, gradients and optimizer states, of all models."""
    weights, gradients, optimizer = list[Tensor](), list[Tensor](), list[Tensor]()
    for backend in (trainer.backend, *(model.backend for model in trainer.extra_models.values())):
        weights += backend.weights().values()
        gradients += [chunk.grad for chunk in backend.local_chunks() if chunk.grad is not None]
        optimizer += [tensor for name, tensor in backend.state_tensors().items() if name.startswith("optim.")]
    return _bytes(weights), _bytes(gradients), _bytes(optimizer)


def peak_bytes(device: torch.device) -> int:
    """The most bytes that were in use at once: of tensors on a GPU, of this process in the machine's memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def capacity_bytes(device: torch.device) -> int:
    """All memory of a GPU, or what the processes of this machine may use together."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return usable_memory()


@torch.no_grad()
def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(local_part(tensor).nbytes for tensor in tensors)
