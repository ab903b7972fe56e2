"""Is a cluster fit to train? Checks of nodes and services, bandwidth of collectives, the slow host."""
