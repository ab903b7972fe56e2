"""What a model and a run will cost, computed before anything is allocated. Never imports torch."""
