"""How a training step is carried out; see `glmforge.backend.base`."""
