"""What to do after a verdict: the decision, what is remembered of nodes, and when more of them are worth asking for."""
