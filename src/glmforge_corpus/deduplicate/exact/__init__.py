"""Equal documents, paragraphs and ids."""
