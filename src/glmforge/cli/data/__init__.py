"""`glmforge data`: one file per group of its commands."""
