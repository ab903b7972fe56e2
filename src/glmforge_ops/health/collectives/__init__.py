"""How fast the ranks of a job communicate, and which host or path is slower than the rest."""
