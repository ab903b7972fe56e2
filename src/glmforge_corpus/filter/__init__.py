"""Blocks that judge documents, score them, and mend them line by line."""
