"""The commands of `glmforge data` that make a corpus."""
