"""The report of a corpus pipeline."""
