"""Conversations: template and loss mask."""
