"""What serving a model takes and how fast it can be: weights and caches that fit, tokens per second, rollouts."""
