"""Agents: conversations of several turns as one sample."""
