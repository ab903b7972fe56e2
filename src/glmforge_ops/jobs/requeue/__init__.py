"""A job put back into its queue: what calls for it, what forbids it, and who does it."""
