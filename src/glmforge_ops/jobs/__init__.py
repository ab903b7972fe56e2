"""Jobs on one machine or many: scripts, submission, supervision, restarts, goodput, sweeps and chains.

`job.py` is what is on file of a job, and the contract between all packages here. `submit` makes a job, with a script of
`script`, and hands it to one of `schedulers`. On the first node `supervisor` starts attempts by one of `starters`;
beside the training processes of every node is `ranks`. `refused` tells starts that Slurm refused, `cancelled` notes a
cancellation. `state`, `show` and `goodput` read what all of these have written. `chain` and `sweep` are several jobs as
one.
"""
