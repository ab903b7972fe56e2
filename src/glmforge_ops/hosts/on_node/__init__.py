"""What every program of ours that is sent to a node has with it: nothing but Python 3.8 and its standard library."""
