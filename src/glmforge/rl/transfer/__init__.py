"""The trainer's weights on their way to servers."""
