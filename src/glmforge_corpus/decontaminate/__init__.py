"""Items of evaluation sets in documents."""
