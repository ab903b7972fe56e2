"""What takes jobs and runs them; see `glmforge.launch.schedulers.base`."""
