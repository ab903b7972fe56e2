"""From the command line to the queue: a new job, looked at beforehand, and handed over to its scheduler."""
