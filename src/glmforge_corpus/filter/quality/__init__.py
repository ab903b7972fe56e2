"""A document's quality: a trained classifier's, or a heuristic."""
