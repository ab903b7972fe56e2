"""How long the work of a step takes on a device."""
