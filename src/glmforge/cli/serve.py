"""`glmforge serve`: a model behind the APIs of OpenAI and Anthropic, and a chat page."""

import secrets
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class EngineName(StrEnum):
    """Programs that can run the model."""

    native = "native"


class Dtype(StrEnum):
    """Types that a model can compute in."""

    bf16 = "bf16"
    fp32 = "fp32"


class DrafterChoice(StrEnum):
    """Who guesses at the coming tokens."""

    none = "none"
    mtp = "mtp"
    ngram = "ngram"


def serve(
    model: Annotated[Path, typer.Argument(help="An export, a run, a step of it (RUN@STEP), or a checkpoint.")],
    engine: Annotated[EngineName, typer.Option(help="The engine that runs the model.")] = EngineName.native,
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
    cache_gib: Annotated[float, typer.Option(min=0.0, help="Memory of the cache for keys and values, in GiB.")] = 1.0,
    max_sequences: Annotated[int, typer.Option(min=1, help="Sequences computed at the same time.")] = 64,
    max_step_tokens: Annotated[int, typer.Option(min=1, help="Tokens computed per step.")] = 512,
    max_queued: Annotated[int, typer.Option(min=1, help="Requests that may wait; further ones get 429.")] = 256,
    max_prompt_tokens: Annotated[int | None, typer.Option(min=1, help="Longest prompt.")] = None,
    max_body_mib: Annotated[int, typer.Option(min=1, help="Largest request body, in MiB.")] = 16,
    drafter: Annotated[DrafterChoice, typer.Option(help="Speculative decoding.")] = DrafterChoice.none,
    dtype: Annotated[Dtype | None, typer.Option(help="Dtype to compute in; default: that of the weights.")] = None,
    device: Annotated[str, typer.Option(help="Device, such as cuda.")] = "cpu",
    tokenizer: Annotated[Path | None, typer.Option(help="Tokenizer directory; default: the model's own.")] = None,
) -> None:
    """Serve a model: OpenAI's chat, completions and Responses, Anthropic's Messages, and a chat page.

    Listens on this machine alone by default. Ctrl-C or SIGTERM waits for running answers; a second one ends at once.

    Examples:

        glmforge serve runs/demo/export

        GLMFORGE_API_KEYS=secret glmforge serve runs/sft/export --host 0.0.0.0 --port 8080
    """
    import torch

    from glmforge.deploy.serve.run import ServerConfig
    from glmforge.deploy.serve.run import serve as run_server
    from glmforge.deploy.serve.service import Limits
    from glmforge.generate.config import EngineConfig
    from glmforge.generate.engine import Engine

    config = ServerConfig(
        name=name or model.name,
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
    loaded = Engine.load(
        model,
        EngineConfig(
            cache_bytes=int(cache_gib * 2**30),
            max_sequences=max_sequences,
            max_step_tokens=max_step_tokens,
            max_queued_requests=max_queued,
            seed=secrets.randbits(62),
            drafter=None if drafter is DrafterChoice.none else drafter.value,  # type: ignore[arg-type]
        ),
        dtype=None if dtype is None else {"bf16": torch.bfloat16, "fp32": torch.float32}[dtype.value],
        device=device,
        tokenizer=tokenizer,
    )
    run_server(loaded, config, typer.echo)
