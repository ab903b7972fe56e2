"""Reinforcement learning: prompts, rollouts, rewards, advantages, and what a step is trained on."""
