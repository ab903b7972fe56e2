"""Text cut into words and sentences, over bytes."""
