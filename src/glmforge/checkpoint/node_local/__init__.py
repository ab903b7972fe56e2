"""Checkpoints that lie in parts on the nodes' own disks, and how they are collected."""
