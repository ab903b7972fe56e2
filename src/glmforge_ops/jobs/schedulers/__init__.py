"""What takes jobs and runs them; see `glmforge_ops.jobs.schedulers.base`."""
