"""The published quality rules: Gopher, C4, FineWeb."""
