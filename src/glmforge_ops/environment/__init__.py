"""The environment of a training job: which variables are set and why, the script, lint of other scripts."""
