"""How good a model is: held-out bits per byte, scores of given text, retrieval from long texts."""
