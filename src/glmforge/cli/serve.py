"""`glmforge serve`: a model behind the APIs of OpenAI and Anthropic, and a chat page."""

import re
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from glmforge.cli.serve_elsewhere import serve_elsewhere
from glmforge.cli.serve_options import DrafterChoice, EngineName, Options, Scenario
from glmforge.cli.signature import takes
from glmforge.errors import GlmforgeError

if TYPE_CHECKING:
    import torch

    from glmforge.checkpoint.adapter.open import Adapter
    from glmforge.config.model import ModelConfig
    from glmforge.deploy.serve.run import ServerConfig
    from glmforge.generate.config import DrafterName, EngineConfig

_DRAFTERS: "dict[DrafterChoice, DrafterName | None]" = {
    DrafterChoice.none: None,
    DrafterChoice.mtp: "mtp",
    DrafterChoice.ngram: "ngram",
}
_ADAPTER_NAME = re.compile(r"[\w.:-]{1,100}", re.ASCII)


@takes(Options)
def serve(options: Options) -> None:
    """Serve a model: OpenAI's chat, completions and Responses, Anthropic's Messages, and a chat page.

    Listens on this machine alone by default. Ctrl-C or SIGTERM waits for running answers; a second one ends at once.
    --scenario chooses settings for our engine on this machine. For vLLM, SGLang and llama.cpp it also chooses how GPUs
    share the model, refuses what does not fit, and starts their own servers; --dry-run shows what it would do.

    Examples:

        glmforge serve runs/demo/export

        GLMFORGE_API_KEYS=secret glmforge serve runs/sft/export --host 0.0.0.0 --port 8080

        glmforge serve models/GLM-4.5-Air --engine vllm --scenario low-latency --gpu h100-80gb --gpus 8 --dry-run

        glmforge serve runs/demo/export --adapter poems=runs/poems --adapter sql=downloaded/sql

        torchrun --nproc-per-node 4 -m glmforge serve runs/glm/export --parallel ep=4

        glmforge serve runs/demo/export --write-deployment deployment
    """
    adapters = _adapter_directories(options)
    if options.engine is not EngineName.native:
        serve_elsewhere(options)
    elif options.write_deployment is not None:
        _write_deployment(options, options.write_deployment, adapters)
    elif options.dry_run:
        _show_settings(options)
    else:
        _serve(options, adapters)


def _serve(options: Options, adapters: dict[str, Path]) -> None:
    from glmforge.checkpoint.pretrained import load_with_tokenizer
    from glmforge.deploy.serve.ranks import serve_ranks
    from glmforge.deploy.serve.run import serve as run_server
    from glmforge.generate.adapters import AdaptedModels
    from glmforge.generate.engine import Engine
    from glmforge.runtime.launch import LaunchEnvironment

    config = _server_config(options)
    launch = LaunchEnvironment.read()
    if options.parallel and launch.world_size == 1:
        raise typer.BadParameter("there is one process; start several by torchrun", param_hint="--parallel")
    if launch.world_size > 1:
        serve_ranks(
            str(options.model),
            config,
            lambda runner: _settings(options, runner.config, _free_bytes(options) / launch.local_world_size),
            dtype=_dtype(options),
            tokenizer=options.tokenizer,
            parallel=options.parallel or (),
            say=typer.echo,
        )
        return
    opened = _open_adapters(options.model, adapters)
    model, words = load_with_tokenizer(options.model, options.tokenizer, dtype=_dtype(options), device=options.device)
    settings = _settings(options, model.config, _free_bytes(options))
    run_server(Engine(AdaptedModels(model, opened) if opened else model, settings, tokenizer=words), config, typer.echo)


def _server_config(options: Options) -> "ServerConfig":
    from glmforge.deploy.serve.run import ServerConfig
    from glmforge.deploy.serve.service import Limits

    config = ServerConfig(
        name=options.served_as,
        host=options.host,
        port=options.port,
        key_file=options.api_key_file,
        allow_public=options.public,
        hosts=tuple(options.allow_host or ()),
        origins=tuple(options.allow_origin or ()),
        requests_per_minute=options.requests_per_minute,
        drain_seconds=options.drain_seconds,
        weight_updates=options.allow_weight_updates,
        limits=Limits(
            body_bytes=options.max_body_mib << 20, prompt_tokens=options.max_prompt_tokens, seconds=options.timeout
        ),
    )
    config.check()
    return config


def _settings(options: Options, model: "ModelConfig", free_bytes: float) -> "EngineConfig":
    """As given, else by the scenario; of a model that is loaded beside so many free bytes."""
    from glmforge.deploy.serve.scenario import native_settings
    from glmforge.generate.config import EngineConfig

    shares_model = bool(options.adapter or options.parallel)
    chosen = native_settings(options.scenario.value, model, free_bytes, can_draft_by_mtp=not shares_model)
    return EngineConfig(
        cache_bytes=chosen.cache_bytes if options.cache_gib is None else int(options.cache_gib * 2**30),
        max_sequences=options.max_sequences or chosen.max_sequences,
        max_step_tokens=options.max_step_tokens or chosen.max_step_tokens,
        max_queued_requests=options.max_queued,
        seed=secrets.randbits(62),
        drafter=chosen.drafter if options.drafter is None else _DRAFTERS[options.drafter],
    )


def _show_settings(options: Options) -> None:
    """What would be served, by the files' headers alone."""
    from glmforge.deploy.served_model import stored_size

    model, num_bytes = stored_size(options.model, _dtype(options))
    settings = _settings(options, model, max(0.0, _free_bytes(options) - num_bytes))
    typer.echo(f"weights: {num_bytes / 2**30:.2f} GiB")
    for setting in ("max_sequences", "max_step_tokens", "cache_bytes", "drafter"):
        typer.echo(f"{setting}: {getattr(settings, setting)}")


def _dtype(options: Options) -> "torch.dtype | None":
    import torch

    if options.dtype is None:
        return torch.bfloat16 if options.scenario is Scenario.memory_constrained else None
    return {"bf16": torch.bfloat16, "fp32": torch.float32}[options.dtype.value]


def _free_bytes(options: Options) -> float:
    import psutil
    import torch

    if options.device == "cpu" and not (options.parallel and torch.cuda.is_available()):
        return float(psutil.virtual_memory().available)
    return float(torch.cuda.mem_get_info(None if options.device == "cpu" else options.device)[0])


def _adapter_directories(options: Options) -> dict[str, Path]:
    """Of --adapter, by name."""
    found: dict[str, Path] = {}
    for text in options.adapter or ():
        name, _, directory = text.partition("=")
        if not _ADAPTER_NAME.fullmatch(name) or not directory:
            raise typer.BadParameter(
                f"'{text}': pass NAME=DIR, the name of letters, digits, '.', ':', '-' and '_'", param_hint="--adapter"
            )
        if name in found or name == options.served_as:
            raise typer.BadParameter(f"'{name}' is the name of two models; choose another", param_hint="--adapter")
        found[name] = Path(directory)
    if found and (options.parallel or options.engine is not EngineName.native):
        reason = "with --parallel" if options.parallel else f"by --engine {options.engine.value}"
        raise typer.BadParameter(f"adapters are not served {reason}; merge one ('glmforge adapter merge --full')")
    return found


def _open_adapters(model: Path, adapters: dict[str, Path]) -> "dict[str, Adapter]":
    """Before the model is loaded, which takes longer."""
    if not adapters:
        return {}
    from functools import cache

    from glmforge.checkpoint.adapter.open import open_adapter, weights_of
    from glmforge.deploy.served_model import stored_config_of

    opened, config, base = {}, stored_config_of(model), cache(lambda: weights_of(model))
    for name, directory in adapters.items():
        try:
            opened[name] = open_adapter(directory, config, base)
        except GlmforgeError as error:
            raise type(error)(f"--adapter {name}: {error}") from None
    return opened


def _write_deployment(options: Options, directory: Path, adapters: dict[str, Path]) -> None:
    from glmforge.deploy.deployment_files import write_deployment

    if options.parallel:
        raise typer.BadParameter(
            "the files start one process; put torchrun before its command", param_hint="--parallel"
        )
    command = [sys.executable, "-m", "glmforge", "serve", *options.repeated()]
    for name, path in adapters.items():
        command += ["--adapter", f"{name}={path.absolute()}"]
    others = [path.absolute() for path in (options.tokenizer, *adapters.values()) if path is not None]
    for file in write_deployment(
        directory,
        "native",
        command,
        options.model.absolute(),
        name=options.served_as.lower(),
        port=options.port,
        others=others,
        overwrite=options.force,
    ):
        typer.echo(str(file))
