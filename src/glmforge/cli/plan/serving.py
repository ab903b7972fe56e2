"""`glmforge plan --serve`: a model on some GPUs as a service, format by format, or batch by batch."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import typer
from rich.console import Console

from glmforge.cli.tables import print_table, table

if TYPE_CHECKING:
    from glmforge.config.model import ModelConfig
    from glmforge.plan.machine.machine import Machine
    from glmforge.plan.serving.deployment import Deployment
    from glmforge.plan.serving.summary import ServingQuestion, ServingSummary
    from glmforge.plan.stages.stage import TrainingStage


_SETTINGS = ("--weights", "--acceptance", "--context")


class Service(NamedTuple):
    """The options about serving: `latency` in ms per token, lengths in tokens; no `weights` means every format."""

    weights: str | None
    cache: str
    acceptance: float | None
    context: int | None
    length: int
    latency: float

    def deployment(self, model: "ModelConfig", machine: "Machine", num_gpus: int, weights: str) -> "Deployment":
        """With the weights in this format."""
        from glmforge.plan.serving.deployment import Deployment
        from glmforge.plan.serving.formats import find_cache_format, find_format

        stored = find_cache_format(self.cache)
        return Deployment(model, machine, num_gpus, find_format(weights), stored, self.acceptance)


def check_serving_options(
    *, serve: bool, rollout: str | None, stage: "TrainingStage", given: Mapping[str, object]
) -> None:
    """`given` are other options by name, None or False where they are not. Raises `ConfigError` for what does not go
    together, so that no option is passed over."""
    from glmforge.errors import ConfigError

    names = [name for name, value in given.items() if value not in (None, False)]
    if serve or rollout is not None:
        view = "--serve" if serve else "--rollout"
        if others := [name for name in names if name not in _SETTINGS]:
            raise ConfigError(f"{view}: cannot be combined with {others[0]}; remove one of them")
        if serve and (rollout is not None or not stage.is_plain):
            raise ConfigError("--serve: does not train; remove --stage, --lora and --rollout")
        if not stage.is_plain:
            raise ConfigError(f"--rollout: samples with one model, but this is stage {stage.name}; use stage: rl")
    elif settings := [name for name in names if name in _SETTINGS]:
        raise ConfigError(f"{settings[0]}: needs --serve or --rollout")


def show_serving(model: "ModelConfig", machine: "Machine", num_gpus: int, service: Service, *, as_json: bool) -> None:
    """Print what each format of the weights takes and can do, or the one given."""
    from glmforge.plan.serving.formats import WEIGHT_FORMATS
    from glmforge.plan.serving.summary import ServingQuestion, serving_as_json, summarise_serving

    context = service.context or model.max_position_embeddings
    question = ServingQuestion(context, min(service.length, context), service.latency / 1000)
    names = [row.name for row in WEIGHT_FORMATS] if service.weights is None else [service.weights]
    found = [summarise_serving(service.deployment(model, machine, num_gpus, name), question) for name in names]
    if as_json:
        typer.echo(json.dumps(serving_as_json(question, found), indent=2))
        return
    console = Console()
    _print_formats(found, question, console)
    if service.weights is not None:
        _print_batches(found[0].deployment, question.length, console)
    for summary in found:
        console.print(f"- {summary.words}", highlight=False, soft_wrap=True)
    _print_notes(found[0].deployment, question, console)


def _print_formats(found: "list[ServingSummary]", question: "ServingQuestion", console: Console) -> None:
    latency = f"{1000 * question.seconds_per_token:g} ms"
    columns = ("weights", "GB", f"sequences of {question.context:,}", "fewest GPUs")
    speeds = ("prefill, s", "alone, ms", f"batch in {latency}", "tokens/s", "limit")
    rows = table(*columns, *speeds, in_words=("weights", "limit"))
    for one in found:
        alone, batched = one.alone, one.batched
        rows.add_row(
            one.deployment.weights.name,
            f"{one.deployment.weight_bytes / 1e9:,.1f}",
            f"{one.at_context:,}",
            f"{one.fewest_gpus:,}",
            f"{one.prefill:.2f}" if one.prefill is not None else "",
            f"{1000 * alone.seconds_per_token:.1f}" if alone else "",
            f"{batched.batch:,}" if batched else "",
            f"{batched.tokens_per_second:,.0f}" if batched else "",
            batched.bottleneck if batched else "",
        )
    served = found[0].deployment
    title = f"Serving on {served.num_gpus} x {served.machine.accelerator.name}, sequences of {question.length:,} tokens"
    print_table(title, rows, console)


def _print_batches(deployment: "Deployment", length: int, console: Console) -> None:
    from glmforge.plan.serving.summary import batch_steps

    rows = table(
        "batch", "ms per token", "tokens/s of each", "tokens/s of all", "read, ms", "multiply, ms", "links, ms"
    )
    for step in batch_steps(deployment, length):
        milliseconds = (f"{1000 * seconds:,.2f}" for seconds in (step.read, step.multiply, step.exchange))
        each = 1 / step.seconds_per_token
        rows.add_row(
            f"{step.batch:,}",
            f"{1000 * step.seconds_per_token:,.2f}",
            f"{each:,.1f}",
            f"{step.tokens_per_second:,.0f}",
            *milliseconds,
        )
    print_table(f"Batch by batch, weights in {deployment.weights.name}", rows, console)


def provenance_words(machine: "Machine") -> str:
    """Where the times come from."""
    return (
        "No time is measured: reading and multiplying take at least what the GPU's rates allow "
        f"({machine.compute_provenance}), links what is planned for them ({machine.link_provenance}). "
        "Engines are slower."
    )


def _print_notes(served: "Deployment", question: "ServingQuestion", console: Console) -> None:
    from glmforge.plan.serving.deployment import MEMORY_SHARE

    per_token = served.cache_bytes_per_token
    notes = [
        f"A sequence of {question.context:,} tokens keeps {per_token * question.context / 1e9:,.1f} GB in its cache "
        f"({per_token:,.0f} bytes per token, {served.cache}).",
        f"{MEMORY_SHARE:.0%} of the memory is available for weights and caches.",
        provenance_words(served.machine),
    ]
    if served.acceptance is not None:
        notes.append(f"Assumed acceptance rate of the MTP layer's drafts: {served.acceptance:.0%}.")
    for note in notes:
        console.print(f"- {note}", highlight=False, soft_wrap=True)
