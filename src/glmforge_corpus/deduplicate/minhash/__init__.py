"""Nearly equal documents, by MinHash and verification."""
