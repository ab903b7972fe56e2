"""What a run tells: metrics and their sinks, the progress bar, the run directory."""
