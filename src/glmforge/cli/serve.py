"""`glmforge serve`: a model behind the APIs of OpenAI and Anthropic, and a chat page."""

import secrets
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

if TYPE_CHECKING:
    from glmforge.deploy.engines import EngineName as EngineLiteral
    from glmforge.generate.config import DrafterName

_OTHERS = "Other engines"
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


_DRAFTERS: "dict[DrafterChoice, DrafterName | None]" = {
    DrafterChoice.none: None,
    DrafterChoice.mtp: "mtp",
    DrafterChoice.ngram: "ngram",
}


def serve(
    model: Annotated[Path, typer.Argument(help="An export, a run, a step of it (RUN@STEP), or a checkpoint.")],
    engine: Annotated[EngineName, typer.Option(help="The engine that runs the model.")] = EngineName.native,
    scenario: Annotated[Scenario, typer.Option(help="What the settings below are chosen for.")] = Scenario.balanced,
    host: Annotated[
        str, typer.Option(help="Address to listen on; others than loopback need an API key.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: a free one.")] = 8000,
    name: Annotated[str | None, typer.Option(help="Name of the model; default: the directory's.")] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(help="API keys, one per line; the variable GLMFORGE_API_KEYS adds to them.")
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="Listen beyond this machine without an API key.")] = False,
    allow_host: Annotated[list[str] | None, typer.Option(help="Another host name that requests may use.")] = None,
    allow_origin: Annotated[list[str] | None, typer.Option(help="Origin of a web page that may ask (CORS).")] = None,
    requests_per_minute: Annotated[int | None, typer.Option(min=1, help="Limit per API key.")] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds per request.")] = 600.0,
    drain_seconds: Annotated[float, typer.Option(min=0.0, help="Seconds for running answers at SIGTERM.")] = 30.0,
    cache_gib: Annotated[
        float | None,
        typer.Option(min=0.0, help="Memory of the cache for keys and values, in GiB.", show_default=_CHOSEN),
    ] = None,
    max_sequences: Annotated[
        int | None, typer.Option(min=1, help="Sequences computed at the same time.", show_default=_CHOSEN)
    ] = None,
    max_step_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens computed per step.", show_default=_CHOSEN)
    ] = None,
    max_queued: Annotated[int, typer.Option(min=1, help="Requests that may wait; further ones get 429.")] = 256,
    max_prompt_tokens: Annotated[int | None, typer.Option(min=1, help="Longest prompt.")] = None,
    max_body_mib: Annotated[int, typer.Option(min=1, help="Largest request body, in MiB.")] = 16,
    drafter: Annotated[DrafterChoice | None, typer.Option(help="Speculative decoding.", show_default=_CHOSEN)] = None,
    dtype: Annotated[Dtype | None, typer.Option(help="Dtype to compute in; default: that of the weights.")] = None,
    device: Annotated[str, typer.Option(help="Device, such as cuda.")] = "cpu",
    tokenizer: Annotated[Path | None, typer.Option(help="Tokenizer directory; default: the model's own.")] = None,
    gpu: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="GPU, such as h100-80gb; default: this machine's.", rich_help_panel=_OTHERS),
    ] = None,
    num_gpus: Annotated[
        int | None, typer.Option("--gpus", min=1, max=4096, help="Number of GPUs.", rich_help_panel=_OTHERS)
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(help="Format of the weights; default: as stored.", rich_help_panel=_OTHERS),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(min=1, help="Longest sequence; default: the model's.", rich_help_panel=_OTHERS),
    ] = None,
    length: Annotated[int, typer.Option(min=1, help="Mean length of a sequence.", rich_help_panel=_OTHERS)] = 4096,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print settings, memory, speed and command.", rich_help_panel=_OTHERS)
    ] = False,
    write_deployment: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write files for Docker, Compose and systemd with engine, scenario, name, host and port.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite earlier deployment files.")] = False,
) -> None:
    """Serve a model: OpenAI's chat, completions and Responses, Anthropic's Messages, and a chat page.

    Listens on this machine alone by default. Ctrl-C or SIGTERM waits for running answers; a second one ends at once.
    --scenario chooses settings for our engine on this machine. For vLLM, SGLang and llama.cpp it also chooses how GPUs
    share the model, refuses what does not fit, and starts their own servers; --dry-run shows what it would do.

    Examples:

        glmforge serve runs/demo/export

        GLMFORGE_API_KEYS=secret glmforge serve runs/sft/export --host 0.0.0.0 --port 8080

        glmforge serve models/GLM-4.5-Air --engine vllm --scenario low-latency --gpu h100-80gb --gpus 8 --dry-run

        glmforge serve runs/demo/export --write-deployment deployment
    """
    served_as = name or model.name
    if engine is not EngineName.native:
        from glmforge.cli.serve_elsewhere import Elsewhere, plan_elsewhere, show_plan, start

        asked = Elsewhere(
            cast("EngineLiteral", engine.value),
            scenario.value,
            host,
            port,
            served_as,
            gpu,
            num_gpus,
            weights,
            context,
            length,
        )
        plan, command = plan_elsewhere(model, asked)
        if write_deployment is not None:
            _write_deployment(write_deployment, engine, command, model, served_as, port, plan.num_gpus, force)
        elif dry_run:
            show_plan(plan, command, asked)
        else:
            start(command, asked.engine)
        return
    if write_deployment is not None:
        command = [sys.executable, "-m", "glmforge", "serve", str(model), "--name", served_as]
        command += ["--scenario", scenario.value, "--host", host, "--port", str(port)]
        _write_deployment(write_deployment, engine, command, model, served_as, port, 0, force)
        return

    import psutil
    import torch

    from glmforge.checkpoint.pretrained import load_with_tokenizer
    from glmforge.deploy.serve.run import ServerConfig
    from glmforge.deploy.serve.run import serve as run_server
    from glmforge.deploy.serve.scenario import native_settings
    from glmforge.deploy.serve.service import Limits
    from glmforge.generate.config import EngineConfig
    from glmforge.generate.engine import Engine

    config = ServerConfig(
        name=served_as,
        host=host,
        port=port,
        key_file=api_key_file,
        allow_public=public,
        hosts=tuple(allow_host or ()),
        origins=tuple(allow_origin or ()),
        requests_per_minute=requests_per_minute,
        drain_seconds=drain_seconds,
        limits=Limits(body_bytes=max_body_mib << 20, prompt_tokens=max_prompt_tokens, seconds=timeout),
    )
    config.check()
    kind = dtype.value if dtype is not None else "bf16" if scenario is Scenario.memory_constrained else None
    loaded, words = load_with_tokenizer(
        model,
        tokenizer,
        dtype=None if kind is None else {"bf16": torch.bfloat16, "fp32": torch.float32}[kind],
        device=device,
    )
    free = psutil.virtual_memory().available if device == "cpu" else torch.cuda.mem_get_info(device)[0]
    chosen = native_settings(scenario.value, loaded.config, free)
    settings = EngineConfig(
        cache_bytes=chosen.cache_bytes if cache_gib is None else int(cache_gib * 2**30),
        max_sequences=max_sequences or chosen.max_sequences,
        max_step_tokens=max_step_tokens or chosen.max_step_tokens,
        max_queued_requests=max_queued,
        seed=secrets.randbits(62),
        drafter=chosen.drafter if drafter is None else _DRAFTERS[drafter],
    )
    if dry_run:
        for setting in ("max_sequences", "max_step_tokens", "cache_bytes", "drafter"):
            typer.echo(f"{setting}: {getattr(settings, setting)}")
        return
    run_server(Engine(loaded, settings, tokenizer=words), config, typer.echo)


def _write_deployment(
    directory: Path,
    engine: EngineName,
    command: list[str],
    model: Path,
    name: str,
    port: int,
    num_gpus: int,
    force: bool,
) -> None:
    from glmforge.deploy.deployment_files import write_deployment

    paths = write_deployment(
        directory, engine.value, command, model, name=name.lower(), port=port, num_gpus=num_gpus, overwrite=force
    )
    for path in paths:
        typer.echo(str(path))
