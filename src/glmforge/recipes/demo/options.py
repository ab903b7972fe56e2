"""What the user of the demo may choose, and the configuration that follows from it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from glmforge.config import RunConfig, load_config


@dataclass(frozen=True)
class DemoOptions:
    """What the user may choose."""

    output_dir: Path
    corpus: Path | None = None
    minutes: float = 5.0
    overrides: Sequence[str] = ()

    @property
    def data(self) -> Path:
        return self.output_dir / "data"

    @property
    def config_file(self) -> Path:
        """The configuration that the demo trains with."""
        return self.output_dir / "demo.yaml"

    @property
    def steps_are_given(self) -> bool:
        """Whether the overrides say how many steps a phase has: then the demo does not plan them again."""
        return any(override.startswith("phases.") and ".steps=" in override for override in self.overrides)

    def load_config(self, overrides: Sequence[str] = ()) -> RunConfig:
        """The preset `demo` with the paths of this demo, `overrides`, and those of the user, which come last."""
        data = self.data
        paths = [
            f"output_dir={self.output_dir}",
            f"data.tokenizer={data / 'tokenizer'}",
            *(f"data.sources.{i}.path={data / name}" for i, name in enumerate(("train", "dialogue"))),
            f"data.held_out.0.path={data / 'held_out'}",
        ]
        return load_config("demo", [*paths, *overrides, *self.overrides])
