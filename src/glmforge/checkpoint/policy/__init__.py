"""When a run saves, from which copy, and which checkpoints it keeps."""
