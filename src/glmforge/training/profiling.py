"""A profile of a live run, between those who ask for it, who takes it, and who has to pause for it.

A process has one profiler only. How many steps were requested is known to rank 0 alone; that a profile is being taken
is known to all ranks alike.
"""

from dataclasses import dataclass


@dataclass
class Profiling:
    """The profile that is requested or running.

    Attributes:
        requested: steps requested, on rank 0, until all ranks know of it.
        steps_left: of the profile that is being taken; the same on all ranks.
    """

    requested: int = 0
    steps_left: int = 0

    def request(self, steps: int) -> bool:
        """Ask for a profile of `steps` steps. False while another is requested or taken: then nothing is changed."""
        if self.requested or self.steps_left:
            return False
        self.requested = steps
        return True
