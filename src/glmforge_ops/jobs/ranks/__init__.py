"""What starts each rank of an attempt on its node, and stays beside it to the end.

    python -P -m glmforge_ops.jobs.ranks ATTEMPT_DIRECTORY --by srun       (one per rank; rank numbers are srun's)
    python -P -m glmforge_ops.jobs.ranks ATTEMPT_DIRECTORY --node 1        (one per node, all of its ranks)

It reads from the attempt's directory what is to be run, sets the variables that every training program knows, writes
the rank's log and its record, passes signals on, and ends the command when the one who asked for it is gone. It starts
once per rank, on thousands of nodes at the same time: only Python's standard library is imported, and little of that.

One loop of one thread reads, watches and passes on. A second thread writes files, so that storage that hangs or is full
never keeps a training process waiting for someone to read its output. A second process, the guard, does nothing but
end the commands if the first is killed.
"""
