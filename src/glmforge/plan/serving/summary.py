"""A model served by some GPUs as rows for tables and JSON: each format of its weights, or one batch by batch."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from glmforge.plan.serving.deployment import (
    MEMORY_SHARE,
    Deployment,
    Step,
    fewest_gpus,
    generation_step,
    largest_batch,
    prefill_seconds,
)


@dataclass(frozen=True)
class ServingQuestion:
    """What is to be served: sequences of up to `context` tokens, `length` on average, each with a token in this many
    seconds at the most."""

    context: int
    length: int
    seconds_per_token: float


@dataclass(frozen=True)
class ServingSummary:
    """What a deployment can do at best; speeds are None where the model does not fit.

    Attributes:
        cache_room: bytes for caches, negative if the weights do not fit.
        at_context: sequences of the longest context at once.
        fewest_gpus: that hold the weights and one such sequence.
        alone: the step of a single sequence. `batched`: that of the most that keep to the latency.
        prefill: seconds until the first token of a prompt of the mean length.
    """

    deployment: Deployment
    cache_room: float
    at_context: int
    fewest_gpus: int
    alone: Step | None
    batched: Step | None
    prefill: float | None

    @property
    def words(self) -> str:
        """Whether it fits, for example "bf16: 714 GB of weights do not fit 8 x 80 GB; 16 GPUs do"."""
        served, device = self.deployment, self.deployment.machine.accelerator
        gpus = f"{served.num_gpus} x {device.memory_bytes / 1e9:.0f} GB"
        name, needed = served.weights.name, f"{served.weight_bytes / 1e9:,.0f} GB of weights"
        if self.at_context:
            return f"{name}: {needed} fit {gpus}, with {self.cache_room / 1e9:,.0f} GB for caches"
        if self.cache_room < 0:
            all_bytes = served.num_gpus * device.memory_bytes
            left = f" and leave {1 - MEMORY_SHARE:.0%} free" if served.weight_bytes <= all_bytes else ""
            return f"{name}: {needed} do not fit {gpus}{left}; {self.fewest_gpus} GPUs do"
        return f"{name}: {needed} fit {gpus}, but not one sequence beside them; {self.fewest_gpus} GPUs hold both"


def summarise_serving(deployment: Deployment, question: ServingQuestion) -> ServingSummary:
    """Of one deployment."""
    fits = deployment.fits(question.length)
    batch = largest_batch(deployment, question.length, question.seconds_per_token)
    return ServingSummary(
        deployment,
        deployment.cache_room,
        deployment.max_sequences(question.context),
        fewest_gpus(deployment, question.context),
        generation_step(deployment, 1, question.length) if fits else None,
        generation_step(deployment, batch, question.length) if batch else None,
        prefill_seconds(deployment, question.length) if fits else None,
    )


def batch_steps(deployment: Deployment, length: int) -> list[Step]:
    """Steps with 1, 4, 16 ... sequences, and with as many as fit."""
    most = deployment.max_sequences(length)
    sizes = sorted({*(4**power for power in range(8) if 4**power < most), most} - {0})
    return [generation_step(deployment, size, length) for size in sizes]


def serving_as_json(question: ServingQuestion, summaries: Iterable[ServingSummary]) -> dict[str, object]:
    """Everything above, ready for JSON."""
    return {"question": asdict(question), "formats": [_as_json(summary) for summary in summaries]}


def step_as_json(step: Step) -> dict[str, object]:
    """A step with what follows from it."""
    return asdict(step) | {
        "seconds_per_token": step.seconds_per_token,
        "tokens_per_second": step.tokens_per_second,
        "bottleneck": step.bottleneck,
    }


def _as_json(summary: ServingSummary) -> dict[str, object]:
    served = summary.deployment
    return {
        "weights": served.weights.name,
        "cache": served.cache,
        "gpu": served.machine.accelerator.name,
        "gpus": served.num_gpus,
        "weight_bytes": served.weight_bytes,
        "cache_bytes_per_token": served.cache_bytes_per_token,
        "cache_room_bytes": summary.cache_room,
        "sequences_at_context": summary.at_context,
        "fewest_gpus": summary.fewest_gpus,
        "words": summary.words,
        "alone": step_as_json(summary.alone) if summary.alone else None,
        "batched": step_as_json(summary.batched) if summary.batched else None,
        "prefill_seconds": summary.prefill,
        "provenance": {
            "read": str(served.machine.compute_provenance),
            "multiply": str(served.machine.compute_provenance),
            "exchange": str(served.machine.link_provenance),
        },
    }
