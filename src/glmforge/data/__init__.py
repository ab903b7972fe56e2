"""What a model reads: documents, token shards, streams of batches, conversations."""
