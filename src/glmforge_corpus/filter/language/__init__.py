"""A document's language."""
