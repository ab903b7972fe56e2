"""Checkpoints of adapters: written by each rank alone, read on any layout, turned into what PEFT and others load."""
