import pytest
import torch

from glmforge.model import GlmMoe
from helpers.models import randomize_, tiny_config


@pytest.fixture(scope="session")
def model() -> GlmMoe:
    """A small model in float64: whatever tokens share a step, no rounding changes which one is the likeliest."""
    model = GlmMoe(tiny_config())
    randomize_(model)
    model.double().eval()
    model.compute_dtype = torch.float64
    return model
