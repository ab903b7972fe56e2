"""The program that starts the ranks of a node and stays with them until they have ended.

    python -P -m glmforge_ops.jobs.ranks ATTEMPT_DIRECTORY --node 1 --control     (here, or through ssh)
    python -P -m glmforge_ops.jobs.ranks ATTEMPT_DIRECTORY --slurm-node           (by srun, one task per node)

It reads `ranks.json` of the attempt's directory, sets each rank's variables, writes its log and record, passes signals
on, and ends the ranks when the supervisor is gone. Only light modules are imported: it starts on thousands of nodes at
the same time.
"""
