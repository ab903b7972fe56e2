"""What judges a reply: final answers, tool calls, rewards. Shared by data, reinforcement learning and evaluation."""
