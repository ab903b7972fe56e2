"""The families of problems: each module has `TEMPLATES`, name -> (easiest level, template)."""
