"""Servers that sample a run's answers."""
