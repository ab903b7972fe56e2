"""Preference pairs: records read and checked, encoded once, packed in pairs of rows."""
