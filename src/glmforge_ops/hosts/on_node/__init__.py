"""Sent to nodes with every program of ours: standard library only."""
