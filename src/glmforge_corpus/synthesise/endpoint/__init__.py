"""Questions and solutions from any server that speaks OpenAI's chat completions."""
