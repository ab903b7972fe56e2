"""The chat template: rendered as transformers renders it, in a sandbox, because a tokenizer may bring its own."""
