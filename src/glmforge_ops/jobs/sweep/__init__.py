"""Runs that differ in a few settings: made, run and compared together."""
