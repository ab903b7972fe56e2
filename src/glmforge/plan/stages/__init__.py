"""What a stage of training asks of a model: which models take part, and which of their parameters it trains."""
