"""Jobs on one machine or many: scripts, submission, supervision, restarts, sweeps and chains.

`new_job` makes a job, with a script of `script`; `submit` gives it to one of `schedulers`. On the first node
`supervisor` starts attempts by one of `starters`; beside the training processes of every node is `ranks`. `registry`
finds jobs, `state` has how they are, `show` and `logs` print it, `control` ends them and submits them
again. `sweep` and `chain` are `several` jobs as one. What is on file of a job is `glmforge.observe.job_records`.
"""
