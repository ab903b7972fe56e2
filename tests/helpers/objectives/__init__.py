"""Objectives of stages that are still to come, in their smallest form."""
