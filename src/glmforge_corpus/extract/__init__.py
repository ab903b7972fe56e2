"""Raw files to documents: WARC and HTML, PDF, repositories, records, plain text; Unicode repair."""
