"""Documents as every room meets them: one at a time, in batches of columns, and the files they are read from."""
