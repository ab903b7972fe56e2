"""What is there twice: exactly, nearly, in passages, in meaning."""
