"""What the user of the demo may choose, and the configurations that follow from it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from glmforge.config import RunConfig, load_config

_OF_BOTH_RUNS = ("model.", "seed=", "precision.", "kernels.", "parallel.")


@dataclass(frozen=True)
class DemoOptions:
    """What the user may choose.

    Attributes:
        overrides: settings of the pre-training; those of the model and its arithmetic hold for both runs.
        sft_overrides: settings of the fine-tuning.
    """

    output_dir: Path
    corpus: Path | None = None
    minutes: float = 6.0
    overrides: Sequence[str] = ()
    sft_overrides: Sequence[str] = ()

    @property
    def data(self) -> Path:
        return self.output_dir / "data"

    @property
    def config_file(self) -> Path:
        """The configuration that the demo pre-trains with."""
        return self.output_dir / "demo.yaml"

    @property
    def sft_config_file(self) -> Path:
        """The configuration that the demo fine-tunes with."""
        return self.output_dir / "sft.yaml"

    @property
    def steps_are_given(self) -> bool:
        """Whether the overrides say how long the pre-training is: then the demo does not plan it again."""
        return any(override.startswith("phases.") and ".steps=" in override for override in self.overrides)

    def load_config(self, overrides: Sequence[str] = ()) -> RunConfig:
        """The preset `demo` with the paths of this demo, `overrides`, and those of the user, which come last."""
        paths = [
            f"output_dir={self.output_dir}",
            f"data.tokenizer={self.data / 'tokenizer'}",
            f"data.sources.0.path={self.data / 'train'}",
            f"data.held_out.0.path={self.data / 'held_out'}",
        ]
        return load_config("demo", [*paths, *overrides, *self.overrides])

    def load_sft_config(self, overrides: Sequence[str] = ()) -> RunConfig:
        """The preset `demo_sft` likewise."""
        paths = [
            f"output_dir={self.output_dir / 'sft'}",
            f"init_from={self.output_dir}",
            f"data.tokenizer={self.data / 'tokenizer'}",
            f"data.sources.0.path={self.data / 'chat.jsonl'}",
            f"data.sources.1.path={self.data / 'train'}",
            f"data.held_out.0.path={self.data / 'chat_held_out.jsonl'}",
            f"data.held_out.1.path={self.data / 'held_out'}",
        ]
        of_both = [override for override in self.overrides if override.startswith(_OF_BOTH_RUNS)]
        return load_config("demo_sft", [*paths, *overrides, *of_both, *self.sft_overrides])
