"""A scheduler of a test's own, which does what Slurm does with arrays and with jobs that wait for others.

scheduler = FakeScheduler()
scheduler.submit(job, launch)         # '1', the next one '2'; an array's tasks are '3_0', '3_1', ...
scheduler.end("1", State.COMPLETED)   # jobs start by themselves when what they wait for has completed
"""

from collections.abc import Iterable, Sequence

from glmforge.config.launch import LaunchConfig
from glmforge.errors import LaunchError
from glmforge.observe.job_records import JobDirectory
from glmforge_ops.jobs.schedulers.base import Seen, State


class FakeScheduler:
    """A `Scheduler` whose jobs end when the test says so."""

    name = "fake"

    def __init__(self) -> None:
        self.ended: dict[str, State] = {}
        self.after: dict[str, tuple[str, ...]] = {}
        """Submission -> those that it waits for."""
        self.scripts: dict[str, str] = {}
        self.arrays: dict[str, str] = {}
        """Submission -> its array, with the throttle."""
        self.cancelled: list[str] = []
        self.is_down = False
        """It takes no jobs."""
        self.lost: dict[str, list[str]] = {}
        """Job -> submissions of it that nobody has noted."""
        self.is_silent = False
        """It tells nothing of those that it has."""

    def check(self, launch: LaunchConfig) -> None:
        if launch.partition == "nowhere":
            raise LaunchError("partition: there is no 'nowhere'")

    def submit(self, job: JobDirectory, launch: LaunchConfig, *, after: Sequence[str] = (), array: str = "") -> str:
        if self.is_down:
            raise LaunchError("sbatch: no answer; nothing was submitted")
        number = str(len(self.scripts) + 1)
        self.scripts[number] = job.script.read_text()
        for id_ in [f"{number}_{task}" for task in tasks_of(array)] if array else [number]:
            self.after[id_] = tuple(after)
        if array:
            self.arrays[number] = array
        return number

    def look(self, ids: Iterable[str]) -> dict[str, Seen]:
        return {id_: self._seen(id_) for id_ in ids}

    def cancel(self, submission: str) -> None:
        self.cancelled.append(submission)
        for id_ in self.after:
            if submission in (id_, id_.partition("_")[0]) and not self._seen(id_).state.is_over:
                self.ended[id_] = State.CANCELLED

    def release(self, submission: str) -> None:
        raise LaunchError(f"scontrol release {submission}: it is not held")

    def unnoted(self, job: JobDirectory) -> list[str]:
        return self.lost.get(job.name, [])

    def end(self, submission: str, state: State) -> None:
        assert self._seen(submission).state is State.RUNNING, "only what runs can end"
        self.ended[submission] = state

    def state(self, submission: str) -> State:
        return self._seen(submission).state

    def _seen(self, id_: str) -> Seen:
        if self.is_silent:
            return Seen(id_, State.UNKNOWN, "the scheduler does not answer")
        if id_ not in self.after:
            return Seen(id_, State.UNKNOWN, "the scheduler knows no such job", is_forgotten=True)
        if id_ in self.ended:
            return Seen(id_, self.ended[id_])
        needed = [self.ended.get(need) for need in self.after[id_]]
        if any(state is not None and state is not State.COMPLETED for state in needed):
            return Seen(id_, State.HELD, "DependencyNeverSatisfied")
        if not all(needed):
            return Seen(id_, State.WAITING, "Dependency")
        return Seen(id_, State.RUNNING)


def tasks_of(array: str) -> list[int]:
    """'0-2,5%2' -> [0, 1, 2, 5]."""
    found = []
    for part in array.partition("%")[0].split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found
