"""Toxic documents: word lists and a trained classifier."""
