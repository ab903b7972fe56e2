"""Benchmarks: tasks of lm-evaluation-harness answered by the generation engine or by an endpoint, every reply kept."""
