"""Diagnosis: reads what all other rooms leave behind, and runs a few steps to see where their time and memory go."""
