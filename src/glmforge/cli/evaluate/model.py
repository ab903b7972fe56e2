"""The model that an evaluation is of, and the options that say where it is: on the disk, or behind a URL."""

import os
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glmforge.cli.generate import Dtype
from glmforge.errors import GlmforgeError
from glmforge.extras import needed_for

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from glmforge.evaluate.benchmarks.endpoint_model import EndpointModel, Server
    from glmforge.evaluate.benchmarks.language_model import EngineLM
    from glmforge.evaluate.benchmarks.model import Generation, Progress
    from glmforge.evaluate.benchmarks.replies import ReplyStore
    from glmforge.evaluate.open_model import OpenModel


def _option(text: str, **kind: Any) -> Any:
    return typer.Option(help=text, rich_help_panel="Model and server", **kind)


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Which model answers, and how it runs."""

    model: Annotated[str, typer.Argument(help="An export, a run, a step of it (RUN@STEP), a checkpoint, or a URL.")]
    dtype: Annotated[Dtype | None, _option("Compute in this type instead of the stored one.")] = None
    device: Annotated[str, _option("Where the model goes, such as cuda; ranks take their own GPUs.")] = "cpu"
    parallel: Annotated[
        list[str] | None,
        _option("Under torchrun: how the ranks share the model, such as tp=2,ep=4; else its data ranks."),
    ] = None
    cache_gib: Annotated[float, _option("Memory for keys and values, in GiB.", min=0.001)] = 0.25
    max_sequences: Annotated[int, _option("Requests that run at the same time.", min=1)] = 64
    tokenizer: Annotated[
        Path | None, _option("Instead of the model's own tokenizer. With a URL: send token ids, not text.")
    ] = None
    model_name: Annotated[str, _option("With a URL: the model, as its server calls it.")] = ""
    api_key_env: Annotated[str, _option("With a URL: environment variable with the API key.")] = ""
    connections: Annotated[int, _option("With a URL: requests at the same time.", min=1)] = 16
    timeout: Annotated[float, _option("With a URL: seconds to wait for an answer.", min=0.001)] = 600.0


def server_of(options: ModelOptions) -> "Server | None":
    """Where the model is, if it is a URL.

    Raises:
        GlmforgeError: an option that the URL lacks, or that a model on the disk does not take.
    """
    if "://" not in options.model:
        if given := next((name for name in ("model_name", "api_key_env") if getattr(options, name)), None):
            raise GlmforgeError(f"--{given.replace('_', '-')}: needs the URL of a server as the model")
        return None
    if not options.model_name:
        raise GlmforgeError("a server needs --model-name, the name that it gives to the model (see its /v1/models)")
    with needed_for("evaluating a server"):
        from glmforge.evaluate.benchmarks.endpoint_model import Server
    return Server(options.model, options.model_name, api_key(options.api_key_env), options.timeout, options.connections)


def api_key(variable: str) -> str:
    """The key in an environment variable; "" where no variable is named."""
    if variable and not os.environ.get(variable):
        raise GlmforgeError(f"--api-key-env: the environment variable {variable} is not set")
    return os.environ.get(variable, "")


def opened(options: ModelOptions, server: "Server | None") -> "AbstractContextManager[OpenModel | Server]":
    """The model: on the disk, opened by all ranks, or the server."""
    if server is not None:
        return nullcontext(server)
    import torch

    from glmforge.evaluate.open_model import open_model
    from glmforge.generate.config import EngineConfig

    dtypes = {Dtype.bf16: torch.bfloat16, Dtype.fp32: torch.float32}
    config = EngineConfig(
        cache_bytes=int(options.cache_gib * 2**30),
        max_sequences=options.max_sequences,
        max_step_tokens=max(512, options.max_sequences),
    )
    return open_model(
        options.model,
        config,
        dtype=None if options.dtype is None else dtypes[options.dtype],
        device=options.device,
        tokenizer=options.tokenizer,
        parallel=options.parallel or (),
    )


def answering(
    model: "OpenModel | Server",
    options: ModelOptions,
    replies: "ReplyStore",
    generation: "Generation",
    *,
    is_chat: bool,
    on_progress: "Progress | None" = None,
) -> "EngineLM | EndpointModel":
    """What answers the harness's requests with an opened model."""
    from glmforge.data.tokens.tokenizer import Tokenizer
    from glmforge.evaluate.benchmarks.language_model import EngineLM
    from glmforge.evaluate.open_model import OpenModel

    if isinstance(model, OpenModel):
        return EngineLM(model.engine, replies, generation, is_chat=is_chat, on_progress=on_progress)
    from glmforge.evaluate.benchmarks.endpoint_model import EndpointModel

    words = None if options.tokenizer is None else Tokenizer.load(options.tokenizer)
    return EndpointModel(model, replies, generation, tokenizer=words, on_progress=on_progress)


def identity_of(model: "OpenModel | Server", options: ModelOptions) -> dict[str, object]:
    """What tells the model from others, and how long it was trained where that is known."""
    from glmforge.evaluate.open_model import OpenModel
    from glmforge.evaluate.run import trained_for

    if isinstance(model, OpenModel):
        return model.identity | trained_for(options.model)
    return {"server": model.url, "name": model.model, "tokenizer": str(options.tokenizer or "")}
