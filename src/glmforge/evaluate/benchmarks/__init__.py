"""Benchmarks: tasks of lm-evaluation-harness answered by the generation engine or by an endpoint, every reply kept."""

import os

os.environ.setdefault("TQDM_DISABLE", "1")  # the harness shows a bar for each of its tasks
