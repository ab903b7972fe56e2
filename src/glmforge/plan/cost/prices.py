"""What an hour of a GPU costs to rent, where the user does not say.

Prices fall within months and differ by a factor of two between providers. The table is there so that a plan without
one's own price says something; every figure made of it names price and date.
"""

from typing import NamedTuple

from glmforge.plan.cost.settings import CostSettings
from glmforge.plan.machine.hardware import Accelerator


class Price(NamedTuple):
    """Dollars for an hour of one GPU."""

    dollars_per_gpu_hour: float
    date: str
    source: str


_CLOUDS = "middle of specialised clouds' prices on demand by mercatus-ai.com"
PRICES = {
    "A100 SXM 80GB": Price(1.30, "2026-05", _CLOUDS),
    "H100 SXM": Price(3.00, "2026-05", _CLOUDS),
    "H200 SXM": Price(4.00, "2026-05", _CLOUDS),
    "B200": Price(6.03, "2026-03", "spheron.network's price on demand"),
    "H800 SXM": Price(2.50, "undated", "users' guides"),
}


def price_of(accelerator: Accelerator, settings: CostSettings) -> Price | None:
    """The user's price, else that of the table, else None."""
    if settings.dollars_per_gpu_hour is not None:
        return Price(settings.dollars_per_gpu_hour, settings.priced_on or "undated", "given")
    return PRICES.get(accelerator.name)


def prices_markdown() -> str:
    """The table of prices, for the docs."""
    rows = [f"| {gpu} | {row.dollars_per_gpu_hour:.2f} | {row.date} | {row.source} |" for gpu, row in PRICES.items()]
    return "\n".join(["| GPU | dollars per hour | of | source |", "|---|---|---|---|", *rows, ""])
