"""Text generation: an engine that serves many requests from the weights at hand."""
