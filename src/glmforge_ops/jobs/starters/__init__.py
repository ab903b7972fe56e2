"""What starts the ranks of an attempt on the nodes: here (`local`), through ssh, or by Slurm's srun.

A starter takes the nodes it is given. On each of them it starts one `jobs.ranks`, which starts the node's ranks, keeps
their logs and records, and ends them when the supervisor is gone.
"""
