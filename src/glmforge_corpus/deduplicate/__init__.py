"""What is there twice: exactly, nearly, in passages, in meaning; and what evaluation sets ask."""
