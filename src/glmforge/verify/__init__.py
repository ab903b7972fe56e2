"""What judges a reply: form, answers, tool calls, rewards. Shared by data, reinforcement learning and evaluation."""
