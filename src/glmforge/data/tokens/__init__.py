"""Tokenizer, encoder and token shards (Megatron's .bin and .idx)."""
