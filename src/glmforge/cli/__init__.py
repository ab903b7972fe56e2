"""The command line: one file per group of commands; parse, call, print."""
