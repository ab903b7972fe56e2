"""Adapters: parts of low rank that are trained beside frozen weights, put into the model from outside."""
