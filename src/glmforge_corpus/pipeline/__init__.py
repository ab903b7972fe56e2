"""Runs a pipeline: stages of independent tasks over shards, on one machine or many, killed and continued."""
