"""`kernels`: which implementation of each operation a run computes with.

Every operation has a plain implementation in PyTorch, the reference, and may have faster ones that compute the same to
within rounding. `glmforge.kernels.choice` puts a name in the place of "auto" when a run starts.
"""

from typing import Literal, get_args

from pydantic import Field

from glmforge.config.model import Strict

Choice = Literal["auto", "plain", "triton"]


class KernelsConfig(Strict):
    """An implementation by name for each operation; `auto` is the fastest that has been measured on the device, and
    plain PyTorch where nothing has been."""

    router: Choice = Field(default="auto", description="MoE router: sigmoid, bias, top-k, normalise, scale")
    permute: Choice = Field(default="auto", description="rows into expert order, and their weighted sum")
    swiglu: Choice = Field(default="auto", description="silu(gate) * up of the routed experts")
    rms_norm: Choice = Field(default="auto", description="root-mean-square norm")
    qk_rope: Choice = Field(default="auto", description="norm of queries and keys per head, and rotary embedding")
    cross_entropy: Choice = Field(default="auto", description="cross-entropy from hidden states")
    symmetric_matmul: Choice = Field(default="auto", description="x @ x.T in Muon's Newton-Schulz iteration")
    attention: Literal["auto", "dense", "documents", "flex", "varlen", "flash3"] = Field(
        default="auto",
        description="auto: documents on a CPU; on a GPU varlen in bf16 and flex in fp32",
    )
    experts: Literal["auto", "loop", "sliced", "grouped"] = Field(
        default="auto", description="the experts' matmuls; auto: sliced on a CPU, grouped on a GPU"
    )

    @classmethod
    def implementations(cls, operation: str) -> tuple[str, ...]:
        """What an operation may be computed with, by name, without "auto"."""
        return tuple(name for name in get_args(cls.model_fields[operation].annotation) if name != "auto")
