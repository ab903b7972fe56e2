"""What runs on nodes: sent there over ssh as text, so it needs nothing but Python 3.9 and its standard library."""
