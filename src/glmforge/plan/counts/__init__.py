"""Parameters, FLOPs and bytes of a whole model, before it is laid on any device."""
