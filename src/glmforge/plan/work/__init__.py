"""What one rank computes and sends in a training step."""
