"""The search for slow hosts and slow paths between hosts."""
