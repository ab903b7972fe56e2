"""Stages that follow each other: made from one file, submitted and resumed together."""
