"""Attempt after attempt until the job is done: watch one, judge why it ended, decide what to do, do it.

`supervise` is the loop, put together by `assemble`. `watch` looks at an attempt that runs; `evidence` gathers what one
that has ended left behind, `judge` (with `signs`) says why it ended, `decide` what is next. `nodes` keeps which nodes
have failed, `records` writes down what happened, `allocation` is where a job runs.
"""
