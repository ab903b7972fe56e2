"""Requests of OpenAI's and Anthropic's APIs as one internal request, and replies in each API's form."""
