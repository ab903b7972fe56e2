"""The trainer, its step and the hooks around it."""
