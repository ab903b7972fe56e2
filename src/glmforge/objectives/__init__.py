"""What is minimised, one file each; see `glmforge.backend.objective` for what an objective has to answer."""
