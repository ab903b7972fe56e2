"""From token shards to batches: mixture, order, packing, curriculum, loader."""
