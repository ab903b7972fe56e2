"""What stands in for a module where only its choice of kernels is asked."""

from glmforge.kernels.choice import UNMEASURED, ChoosesKernels


def module_with(**implementations: str) -> ChoosesKernels:
    """As a module is before a run chooses, but for these operations."""
    module = ChoosesKernels()
    module.kernels = UNMEASURED.model_copy(update=implementations)
    return module
