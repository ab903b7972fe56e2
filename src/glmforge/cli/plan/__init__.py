"""`glmforge plan`: one file per view; `command.py` has the options."""
