"""Documents as all packages use them: one at a time, in batches of columns, and the files they are read from."""
