"""Where a process runs and with whom it shares storage: identities of processes, locks on directories, interrupts."""
