"""Prepare nodes for a cluster: find out what is there, show what would change, change it."""
