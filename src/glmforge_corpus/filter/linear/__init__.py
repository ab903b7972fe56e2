"""A trainable text classifier: linear, over hashed words."""
