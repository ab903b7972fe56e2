"""A job's script, and what it is rendered from: hosts, node counts, limits, containers, templates."""
