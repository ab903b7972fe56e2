"""Profile some steps of a live run with torch.profiler, on the first and the last rank.

Two ranks are enough to tell a slow rank from a slow network, and the last one is another node, and another pipeline
stage, than the first. The number of steps is known to rank 0 alone, until all ranks hear the vote "profile".
"""

import logging
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from glmforge.observe.run import RunDirectory
from glmforge.training.order import Priority
from glmforge.training.profiling import Profiling
from glmforge.training.step import StepResult
from glmforge.training.trainer import Hook, Trainer

logger = logging.getLogger(__name__)

_ROWS = 60


class ProfileHook(Hook):
    """On the vote "profile" writes a Chrome trace and a table of operators for the steps that follow.

    They go to `<run>/profile/step-N/`, N being the last step before.

    Args:
        output_dir: the run directory.
        profiling: where profiles are requested; while one is being taken, it says so.
    """

    name = "profile"
    priority = Priority.COMMAND

    def __init__(self, output_dir: Path, profiling: Profiling) -> None:
        self.root, self.profiling = output_dir, profiling
        self._first_step = 0
        self._profile: profile | None = None
        self._trainer: Trainer | None = None

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        if self.profiling.steps_left:
            if self._profile is not None:
                self._profile.step()
            self.profiling.steps_left -= 1
            if not self.profiling.steps_left:
                self._finish()
        elif "profile" in result.votes:
            self._start(trainer)

    def close(self) -> None:
        """Write what there is of a profile that is still being taken."""
        if self.profiling.steps_left:
            self.profiling.steps_left = 0
            self._finish()

    def _start(self, trainer: Trainer) -> None:
        """All ranks call this together."""
        world = trainer.world
        steps = torch.tensor(self.profiling.requested if world.is_main else 0, device=world.device)
        # Another rank may have cast the vote, knowing no number.
        self.profiling.steps_left = max(1, int(world.sum(steps)))
        self.profiling.requested = 0
        self._first_step, self._trainer = trainer.state.step, trainer
        if world.rank in (0, world.size - 1):
            activities = [ProfilerActivity.CPU]
            if world.device.type == "cuda":
                activities.append(ProfilerActivity.CUDA)
            self._profile = profile(activities=activities, record_shapes=True)
            self._profile.start()

    def _finish(self) -> None:
        taken, self._profile = self._profile, None
        if taken is None or self._trainer is None:
            return
        taken.stop()
        rank, step = self._trainer.world.rank, self._trainer.state.step
        folder = RunDirectory(self.root).profile / f"step-{self._first_step:08d}"
        what = f"steps {self._first_step + 1:,} to {step:,}"
        try:
            _write(taken, folder, rank, self._trainer.world.device)
        except OSError as error:  # such as a full disk: no reason to end a run
            event, detail = "profile not written", f"{what}: {error}"
        else:
            event, detail = "profiled", f"{what}, in {folder}"
        logger.info("%s: %s", event, detail)
        self._trainer.event(event, detail)


def _write(taken: profile, folder: Path, rank: int, device: torch.device) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    order = "self_device_time_total" if device.type == "cuda" else "self_cpu_time_total"
    table = taken.key_averages().table(sort_by=order, row_limit=_ROWS)
    (folder / f"rank-{rank:05d}.txt").write_text(table + "\n", encoding="utf-8")
    taken.export_chrome_trace(str(folder / f"rank-{rank:05d}.trace.json.gz"))
