"""What others read of a run: HTML pages, tables and figures."""
