"""The process in a job that starts its ranks, finds out why they ended, and decides what to do."""
