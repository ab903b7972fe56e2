"""The real training step of any rank of a job, without its memory, its neighbours or its numbers."""
