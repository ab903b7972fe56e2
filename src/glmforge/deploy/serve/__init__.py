"""A model behind HTTP: routes, requests on the engine, access, metrics, start and end."""
