"""What clients of OpenAI's and Anthropic's APIs ask for, as one request; replies, from token ids."""
