"""What failures leave of a job's time: goodput, and the interval between checkpoints that leaves most.

Failures come at random, at a constant rate. After one the job restarts, goes back to the last checkpoint and does again
what was lost. Checkpoints taken every tau seconds of work, each delaying it by delta, then leave of the time

    tau / (M exp(R / M) (exp((tau + delta) / M) - 1))

with M the mean time between failures and R that of a restart (Daly, "A higher order estimate of the optimum checkpoint
interval for restart dumps", Future Generation Computer Systems 22, 2006, equation 13). The interval that makes it
largest has no closed form; Daly's series, equation 37, is within a percent of it where it matters.

A checkpoint that is written in the background counts only when it has been written: after a failure in the meantime
the job goes back to the one before, so the seconds of writing are lost with every failure, like those of a restart.
One save at a time is written: where the next is due sooner, training waits for it.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Failures:
    """Of a job on all its GPUs.

    Attributes:
        mtbf_seconds: mean time between failures that end the job.
        restart_seconds: from a failure to the first step.
        save_seconds: that training waits for each checkpoint.
        write_seconds: from a checkpoint's step until it is whole on storage that outlives a node.
    """

    mtbf_seconds: float
    restart_seconds: float
    save_seconds: float
    write_seconds: float

    def goodput(self, interval_seconds: float) -> float:
        """The share of time that is progress, with a checkpoint after every `interval_seconds` of work."""
        mtbf = self.mtbf_seconds
        waiting = max(self.save_seconds, self.write_seconds - interval_seconds)
        exponent = (interval_seconds + waiting) / mtbf
        lost = (self.restart_seconds + self.write_seconds) / mtbf
        if exponent + lost > _NEVER:
            return 0.0
        return interval_seconds / (mtbf * math.exp(lost) * math.expm1(exponent))

    def best_interval(self) -> float:
        """Seconds of work between checkpoints that lose least, without waiting for a save before."""
        save, mtbf = self.save_seconds, self.mtbf_seconds
        if save >= 2 * mtbf:
            return mtbf
        ratio = save / (2 * mtbf)
        daly = math.sqrt(2 * save * mtbf) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save
        return max(daly, self.write_seconds)


_NEVER = 700.0
"""exp of more than this is no number: such a job does not end."""
