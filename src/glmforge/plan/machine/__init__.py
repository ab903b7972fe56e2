"""What devices and the links between them can do."""
