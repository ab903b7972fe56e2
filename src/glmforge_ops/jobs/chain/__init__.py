"""Stages of which each needs what earlier ones wrote, made from one file and run as one."""
