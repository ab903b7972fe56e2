"""Questions and solutions from any server with OpenAI's chat completions API."""
