"""Needle tests: facts hidden in long text, and questions about them."""
