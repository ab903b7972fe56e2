"""Everything around a cluster: checks, setup, jobs and their supervision. Only the command line asks for it."""
