"""The mesh of ranks, and how the model is laid on it."""
