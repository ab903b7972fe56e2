"""The heavy arithmetic: a plain reference first, faster forms behind the same function."""
