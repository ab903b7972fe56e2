"""Where a process runs: its rank, how ranks meet, leases of directories, waiting, cores, ssh."""
