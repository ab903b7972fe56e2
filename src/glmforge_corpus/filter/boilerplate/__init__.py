"""Lines that belong to the page and not to the text."""
