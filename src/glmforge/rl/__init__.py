"""Reinforcement learning: prompts, rewards, rollouts and what is learnt from them."""
