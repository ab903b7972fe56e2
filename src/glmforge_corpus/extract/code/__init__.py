"""Code repositories to documents."""
