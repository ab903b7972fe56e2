"""Raw documents to clean text: extract, filter, deduplicate, decontaminate, synthesise, as pipelines of any size."""
