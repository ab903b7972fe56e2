"""Slices of GLM-4.5-Air and GLM-4.5 that stand for one rank's work on one GPU: the one place that says what they are.

Widths, heads and experts per token are the model's. Layers are few. The experts are those of one rank under expert
parallelism: E / ep experts, K of them per token, which gives every expert the T K / (E / ep) rows that it gets from the
tokens of ep ranks. The vocabulary is an eighth: with all of it the head, the most efficient matmul of a step, would be
a third of a slice's work, and is a thirteenth of the whole model's. MTP layers are left out: they are MoE layers.

What a slice cannot show: traffic between ranks, and Muon as ranks share it (here one rank orthogonalises every matrix,
there each of efsdp x ep ranks its share).
"""

from pathlib import Path
from typing import NamedTuple

from glmforge.config import load_config
from glmforge.config.schema import RunConfig

HERE = Path(__file__).parent


class Slice(NamedTuple):
    """A slice at one sequence length.

    Attributes:
        file: beside this one.
        phase: of the file.
        settings: that the sequence length needs to fit, as on the command line.
    """

    file: str
    phase: str
    settings: tuple[str, ...]

    def load(self, *settings: str) -> RunConfig:
        """The run with this phase only; `settings` are laid over its own."""
        config = load_config(HERE / self.file, (*self.settings, *settings))
        return config.model_copy(update={"phases": [phase for phase in config.phases if phase.name == self.phase]})


_AT_4K = ("parallel.micro_batch_size=2",)
_AT_32K = ("parallel.micro_batch_size=1", "parallel.recompute=full")
_AT_128K = ("parallel.micro_batch_size=1", "parallel.recompute=full", "model.num_hidden_layers=2")

SLICES = {
    f"{model}-{phase}": Slice(f"slice_{model}.yaml", phase, settings)
    for model in ("air", "355b")
    for phase, settings in (("4k", _AT_4K), ("32k", _AT_32K), ("128k", _AT_128K))
}
