"""Blocks that judge documents, score them, and clean them line by line."""
