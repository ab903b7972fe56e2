"""Documents that mean the same, by embeddings."""
