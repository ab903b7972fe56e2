"""The GLM-4.5/4.6 Mixture-of-Experts model as plain PyTorch modules for one device."""

from glmforge.model.generate import Sampling, generate
from glmforge.model.transformer import GlmMoe

__all__ = ["GlmMoe", "Sampling", "generate"]
