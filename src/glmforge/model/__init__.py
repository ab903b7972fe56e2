"""The GLM-4.5/4.6 Mixture-of-Experts model as plain PyTorch modules for one device."""

from glmforge.model.transformer import GlmMoe

__all__ = ["GlmMoe"]
