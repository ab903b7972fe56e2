"""Budgets as users' guides print them, to the dollar, and what they imply.

A sheet multiplies GPUs by days by a price and adds lump sums. What it omits is how fast the GPUs would have to be:
that follows from the tokens of the run, and stands beside what 20, 30 and 40 % of the peak would take.
"""

from dataclasses import dataclass

from glmforge.config.schema import RunConfig
from glmforge.errors import ConfigError
from glmforge.plan.cost.phase_time import DAY, model_flops
from glmforge.plan.machine.machine import find_machine

HYPOTHETICAL = (0.2, 0.3, 0.4)
"""Shares of the peak (MFU) that a sheet is compared with."""


@dataclass(frozen=True)
class Sheet:
    """A budget.

    Attributes:
        days: that are paid for.
        training_days: that training itself is said to take.
        lump_sums: dollars beside the GPUs.
        other_price: per GPU-hour, at which the same hours are often given too.
        other_reason: whose price that is.
    """

    name: str
    gpu: str
    num_gpus: int
    days: float
    training_days: float
    dollars_per_gpu_hour: float
    lump_sums: tuple[float, ...] = ()
    other_price: float | None = None
    other_reason: str = ""

    @property
    def gpu_hours(self) -> float:
        return self.num_gpus * self.days * 24

    @property
    def gpu_dollars(self) -> float:
        return self.gpu_hours * self.dollars_per_gpu_hour

    @property
    def dollars(self) -> float:
        return self.gpu_dollars + sum(self.lump_sums)

    @property
    def other_dollars(self) -> float | None:
        """For the GPUs at the other price."""
        return None if self.other_price is None else self.gpu_hours * self.other_price


@dataclass(frozen=True)
class SheetRow:
    """What a run takes on a sheet's GPUs at some share of their peak; dollars without lump sums."""

    words: str
    utilisation: float
    days: float
    gpu_hours: float
    dollars: float


SHEETS = {
    sheet.name: sheet
    for sheet in (
        Sheet("guide", "H800 SXM", 8192, 127, 82, 2.50, (500_000, 3_000_000)),
        Sheet(
            "guide-64",
            "H100 SXM",
            64,
            30,
            30,
            3.00,
            other_price=2.50,
            other_reason="the guide's price is for an H800, not an H100",
        ),
    )
}
"""8,192 GPUs for the whole of pre-training, and 64 for the recipe in small (configs/scaled_down_64gpu.yaml), which the
guide gives as $138K at the price of an H100."""


def find_sheet(name: str) -> Sheet:
    """Raises `ConfigError` for invalid values."""
    if name not in SHEETS:
        raise ConfigError(f"--sheet: unknown sheet '{name}'; choose one of {', '.join(SHEETS)}")
    return SHEETS[name]


def sheet_rows(config: RunConfig, sheet: Sheet, predicted_seconds: float | None) -> list[SheetRow]:
    """What the sheet's days imply for the tokens of `config`, then hypothetical shares, then our own prediction.

    `predicted_seconds` are those of all phases; None if the layout does not serve them all.
    """
    flops = sum(model_flops(config, phase) for phase in config.phases)
    peak = sheet.num_gpus * find_machine(sheet.gpu).accelerator.bf16_flops
    days = {f"as given: {sheet.days:g} days": sheet.days}
    if sheet.training_days != sheet.days:
        days[f"as given: {sheet.training_days:g} days of training"] = sheet.training_days
    days |= {f"at {share:.0%} of the peak": flops / (share * peak) / DAY for share in HYPOTHETICAL}
    if predicted_seconds is not None:
        days["our prediction"] = predicted_seconds / DAY
    return [_row(words, sheet, number, flops / (number * DAY * peak)) for words, number in days.items()]


def _row(words: str, sheet: Sheet, days: float, utilisation: float) -> SheetRow:
    gpu_hours = sheet.num_gpus * days * 24
    return SheetRow(words, utilisation, days, gpu_hours, gpu_hours * sheet.dollars_per_gpu_hour)
