"""Machines by name, and programs run on many of them over ssh."""
