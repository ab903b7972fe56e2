"""The training backend on DeepSpeed's ZeRO."""
