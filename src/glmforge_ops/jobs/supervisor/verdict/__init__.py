"""What an attempt was and why it ended: its ranks, its logs, the run's events, and the verdict on them."""
