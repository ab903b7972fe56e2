"""What a stage of training is made of: its data, objective, backend and hooks."""
