"""Programs: which documents are, in which language, and which of them are worth keeping."""
