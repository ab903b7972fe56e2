"""HTML pages to the text that their authors wrote."""
