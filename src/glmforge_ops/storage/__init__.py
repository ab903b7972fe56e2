"""Copies of data on nodes' own disks, what dead jobs left there, second copies of checkpoints."""
