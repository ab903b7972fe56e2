"""Diagnosis: reads what all others leave behind."""
