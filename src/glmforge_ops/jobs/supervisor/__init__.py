"""Attempt after attempt until the job is done: watch one, judge why it ended, decide what to do, do it.

`supervise` is the loop. `progress` and `watch` look at an attempt that runs; `evidence` gathers what one that has ended
left behind, `judge` (with `words` and `hangs`) says why it ended, `decide` what is next. `nodes` keeps which nodes have
failed, `records` writes down what happened, `slurm` and `places` are where a job runs.
"""
