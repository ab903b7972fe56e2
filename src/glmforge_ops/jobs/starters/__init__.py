"""What starts the ranks of an attempt on the nodes; see `glmforge_ops.jobs.starters.base`."""
