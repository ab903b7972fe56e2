"""What a cost is reckoned with and no plan can know: prices, power, failures, the speed of storage.

Every value is a setting. One that the user does not give is assumed, and the report says so beside it.
"""

from pathlib import Path

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from glmforge.config.load import load_settings
from glmforge.config.model import Strict
from glmforge.config.tree import from_value, override
from glmforge.errors import ConfigError


class CostSettings(Strict):
    """The defaults are published figures of others, or say that they are guesses."""

    dollars_per_gpu_hour: NonNegativeFloat | None = Field(default=None, description="None: the table of prices")
    priced_on: str | None = Field(default=None, description="date of that price, shown beside it")
    dollars_per_kwh: NonNegativeFloat = Field(default=0.0, description="0: included in the price of a GPU-hour")
    dollars_per_tb_month: NonNegativeFloat = Field(default=0.0, description="of checkpoints; 0: as above")
    other_dollars: dict[str, NonNegativeFloat] = Field(default={}, description="lump sums, by name")
    node_power_factor: PositiveFloat = Field(
        default=1.82, description="node power over its GPUs' power; a DGX H100 draws up to 10.2 kW for 8 x 700 W"
    )
    power_usage_effectiveness: PositiveFloat = Field(
        default=1.25, description="data-centre power over node power (PUE); an estimate between good and average"
    )
    gpu_mtbf_hours: PositiveFloat = Field(
        default=50_700,
        description="hours of one GPU between failures that end the job, all causes; Llama 3 had 419 in 54 days on "
        "16,384 H100 (arXiv 2407.21783, section 3.3.4)",
    )
    restart_seconds: NonNegativeFloat = Field(
        default=600, description="from a failure to the first step, without loading the checkpoint; an estimate"
    )
    storage_bytes_per_second: PositiveFloat = Field(
        default=0.67e9,
        description="of shared storage per node, when all read or write; Llama 3's sustains 2 TB/s for some 3,000",
    )
    seconds_per_save: NonNegativeFloat = Field(
        default=1.0, description="training stall per asynchronous save, besides the copy to the host; an estimate"
    )
    disk_bytes: PositiveInt | None = Field(
        default=None,
        description="space for checkpoints; None: free space on this machine at their destination",
    )


def read_settings(price: str | None) -> CostSettings:
    """What `--price` stands for: dollars per GPU-hour, `name=value` separated by commas, or a YAML file of settings.

    Raises `ConfigError`.
    """
    if price is None:
        return CostSettings()
    if price.endswith((".yaml", ".yml")):
        return load_settings(CostSettings, Path(price))
    tree = from_value({}, "--price")
    try:
        for part in price.split(","):
            text = part if "=" in part else f"dollars_per_gpu_hour={part}"
            tree = override(tree, text.strip(), "dollars_per_gpu_hour=2.50")
        return load_settings(CostSettings, tree)
    except ConfigError as error:
        raise ConfigError(f"--price: {error}") from None


def settings_markdown() -> str:
    """The settings as a table, for the docs."""
    rows = [
        f"| `{name}` | {_words(field.get_default(call_default_factory=True))} | {field.description} |"
        for name, field in CostSettings.model_fields.items()
    ]
    return "\n".join(["| setting | default | |", "|---|---|---|", *rows, ""])


def _words(value: object) -> str:
    return f"{value:,.12g}" if isinstance(value, int | float) else ""
