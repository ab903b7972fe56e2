"""Passages that are looked for in much text: words as a comparison sees them, an index, the search."""
