"""What runs probes on a node: sent there with them, so it needs nothing but Python 3.8 and its standard library."""
