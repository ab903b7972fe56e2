"""`glmforge evaluate`: scores, comparison, failures."""
