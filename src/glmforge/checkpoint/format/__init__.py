"""A checkpoint on the disk: its files, what they promise, and how they are read and written."""
