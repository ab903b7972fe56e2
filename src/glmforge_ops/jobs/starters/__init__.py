"""What starts the ranks of an attempt on the nodes: here (`local`), through ssh, or by Slurm's srun.

A starter starts one `jobs.ranks` on each of the nodes that it is given, which starts the node's ranks, keeps their logs
and records, and ends them when the supervisor is gone.
"""
