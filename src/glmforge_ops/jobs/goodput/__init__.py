"""How much of the time of a job's nodes was progress, and where the rest went."""
