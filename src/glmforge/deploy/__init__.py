"""A trained model for others: export to Hugging Face, chat in the terminal."""
