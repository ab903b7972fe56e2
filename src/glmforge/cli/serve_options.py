"""The options of `glmforge serve`, and those that a deployment repeats."""

from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

_ACCESS, _ENGINE, _OTHERS = "Who may ask, and how much", "Our own engine", "Other engines"
_FILES = "Files of a deployment"
_CHOSEN = "by --scenario"


class EngineName(StrEnum):
    """Programs that can run the model."""

    native = "native"
    vllm = "vllm"
    sglang = "sglang"
    llama_cpp = "llama.cpp"


class Scenario(StrEnum):
    """What is best."""

    high_throughput = "high-throughput"
    balanced = "balanced"
    low_latency = "low-latency"
    memory_constrained = "memory-constrained"


class Dtype(StrEnum):
    """Types that a model can compute in."""

    bf16 = "bf16"
    fp32 = "fp32"


class DrafterChoice(StrEnum):
    """Who guesses at the coming tokens."""

    none = "none"
    mtp = "mtp"
    ngram = "ngram"


@dataclass(frozen=True)
class Options:
    """In groups: what is served and where, who may ask, our engine's limits, other engines, what to do instead."""

    model: Annotated[Path, typer.Argument(help="An export, a run, a step of it (RUN@STEP), or a checkpoint.")]
    engine: Annotated[EngineName, typer.Option(help="The engine that runs the model.")] = EngineName.native
    scenario: Annotated[Scenario, typer.Option(help="What the settings below are chosen for.")] = Scenario.balanced
    host: Annotated[str, typer.Option(help="Address to listen on; others than loopback need an API key.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: a free one.")] = 8000
    name: Annotated[str | None, typer.Option(help="Name of the model; default: the directory's.")] = None
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            help="API keys, one per line; the variable GLMFORGE_API_KEYS adds to them.", rich_help_panel=_ACCESS
        ),
    ] = None
    public: Annotated[
        bool, typer.Option("--public", help="Listen beyond this machine without an API key.", rich_help_panel=_ACCESS)
    ] = False
    allow_host: Annotated[
        list[str] | None, typer.Option(help="Another host name that requests may use.", rich_help_panel=_ACCESS)
    ] = None
    allow_origin: Annotated[
        list[str] | None, typer.Option(help="Origin of a web page that may ask (CORS).", rich_help_panel=_ACCESS)
    ] = None
    allow_weight_updates: Annotated[
        bool,
        typer.Option(
            "--allow-weight-updates", help="Let a trainer with an API key send weights.", rich_help_panel=_ACCESS
        ),
    ] = False
    requests_per_minute: Annotated[
        int | None, typer.Option(min=1, help="Limit per API key.", rich_help_panel=_ACCESS)
    ] = None
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds per request.", rich_help_panel=_ACCESS)] = 600.0
    max_queued: Annotated[
        int, typer.Option(min=1, help="Requests that may wait; further ones get 429.", rich_help_panel=_ACCESS)
    ] = 256
    max_prompt_tokens: Annotated[int | None, typer.Option(min=1, help="Longest prompt.", rich_help_panel=_ACCESS)] = (
        None
    )
    max_body_mib: Annotated[int, typer.Option(min=1, help="Largest request body, in MiB.", rich_help_panel=_ACCESS)] = (
        16
    )
    drain_seconds: Annotated[
        float, typer.Option(min=0.0, help="Seconds for running answers at SIGTERM.", rich_help_panel=_ACCESS)
    ] = 30.0
    cache_gib: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Memory of the cache for keys and values, in GiB.",
            show_default=_CHOSEN,
            rich_help_panel=_ENGINE,
        ),
    ] = None
    max_sequences: Annotated[
        int | None,
        typer.Option(min=1, help="Sequences computed at the same time.", show_default=_CHOSEN, rich_help_panel=_ENGINE),
    ] = None
    max_step_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens computed per step.", show_default=_CHOSEN, rich_help_panel=_ENGINE)
    ] = None
    drafter: Annotated[
        DrafterChoice | None, typer.Option(help="Speculative decoding.", show_default=_CHOSEN, rich_help_panel=_ENGINE)
    ] = None
    dtype: Annotated[
        Dtype | None, typer.Option(help="Dtype to compute in; default: that of the weights.", rich_help_panel=_ENGINE)
    ] = None
    device: Annotated[str, typer.Option(help="Device, such as cuda.", rich_help_panel=_ENGINE)] = "cpu"
    tokenizer: Annotated[
        Path | None, typer.Option(help="Tokenizer directory; default: the model's own.", rich_help_panel=_ENGINE)
    ] = None
    adapter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=DIR",
            help="An adapter to serve as the model NAME: a PEFT directory or a run.",
            rich_help_panel=_ENGINE,
        ),
    ] = None
    parallel: Annotated[
        list[str] | None,
        typer.Option(
            metavar="AXIS=N",
            help="How ranks share the model, such as ep=2; start them with torchrun.",
            rich_help_panel=_ENGINE,
        ),
    ] = None
    gpu: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="GPU, such as h100-80gb; default: this machine's.", rich_help_panel=_OTHERS),
    ] = None
    num_gpus: Annotated[
        int | None, typer.Option("--gpus", min=1, max=4096, help="Number of GPUs.", rich_help_panel=_OTHERS)
    ] = None
    weights: Annotated[
        str | None,
        typer.Option(help="Format of the weights; default: as stored.", rich_help_panel=_OTHERS),
    ] = None
    context: Annotated[
        int | None,
        typer.Option(min=1, help="Longest sequence; default: the model's.", rich_help_panel=_OTHERS),
    ] = None
    length: Annotated[int, typer.Option(min=1, help="Mean length of a sequence.", rich_help_panel=_OTHERS)] = 4096
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print settings, memory, speed and command.", rich_help_panel=_OTHERS)
    ] = False
    write_deployment: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write files for Docker, Compose and systemd that start this command with these options.",
            rich_help_panel=_FILES,
        ),
    ] = None
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite earlier deployment files.", rich_help_panel=_FILES)
    ] = False

    @property
    def served_as(self) -> str:
        """The name of the model."""
        return self.name or self.model.name

    def repeated(self) -> list[str]:
        """The words of a command with the options of our own engine that are not as by default, paths from the root.
        Model, name, host and port come first, whatever they are."""
        words = [str(self.model.absolute()), "--name", self.served_as, "--host", self.host, "--port", str(self.port)]
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in _NOT_REPEATED and value != field.default:
                option = f"--{field.name.replace('_', '-')}"
                given = value if isinstance(value, list) else [value]
                words += [option] if value is True else [word for one in given for word in (option, _word(one))]
        return words


_NOT_REPEATED = {
    "model", "name", "host", "port", "engine", "gpu", "num_gpus", "weights", "context", "length", "dry_run",
    "write_deployment", "force", "adapter",
}  # fmt: skip


def _word(value: object) -> str:
    return str(value.absolute() if isinstance(value, Path) else value)
