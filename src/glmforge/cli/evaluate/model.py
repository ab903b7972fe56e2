"""The model that is evaluated, on the disk or behind a URL, and its options."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from glmforge.cli.generate import Dtype
from glmforge.errors import GlmforgeError
from glmforge.extras import needed_for

if TYPE_CHECKING:
    from glmforge.evaluate.benchmarks.endpoint_model import EndpointModel, Server
    from glmforge.evaluate.benchmarks.language_model import EngineLM


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


class Opened(NamedTuple):
    """A model that is ready.

    Attributes:
        source: its name in results.
        identity: distinguishes it from other models; how long it was trained, where that is known.
        answering: takes replies and generation, and makes what answers the harness's requests.
    """

    source: str
    identity: dict[str, Any]
    answering: "Callable[..., EngineLM | EndpointModel]"


@contextmanager
def opened(options: ModelOptions, *, is_chat: bool) -> Iterator[Opened]:
    """The model: on the disk, opened by all ranks together, or on a server."""
    from glmforge.data.tokens.tokenizer import Tokenizer
    from glmforge.evaluate.benchmarks.endpoint_model import EndpointModel
    from glmforge.evaluate.benchmarks.language_model import EngineLM
    from glmforge.evaluate.open_model import open_model
    from glmforge.evaluate.run import trained_for
    from glmforge.generate.config import EngineConfig
    from glmforge.parallel.build import DTYPES

    if (server := server_of(options)) is not None:
        words = None if options.tokenizer is None else Tokenizer.load(options.tokenizer)
        identity = {"server": server.url, "name": server.model, "tokenizer": str(options.tokenizer or "")}
        yield Opened(f"{server.model} at {server.url}", identity, partial(EndpointModel, server, tokenizer=words))
        return
    config = EngineConfig(
        cache_bytes=int(options.cache_gib * 2**30),
        max_sequences=options.max_sequences,
        max_step_tokens=max(512, options.max_sequences),
    )
    dtype = None if options.dtype is None else DTYPES[options.dtype.value]
    where: dict[str, Any] = {"dtype": dtype, "device": options.device, "tokenizer": options.tokenizer}
    with open_model(options.model, config, **where, parallel=options.parallel or ()) as model:
        identity = model.identity | trained_for(options.model)
        yield Opened(options.model, identity, partial(EngineLM, model.engine, is_chat=is_chat))


def server_of(options: ModelOptions) -> "Server | None":
    """Where the model is, if it is a URL.

    Raises:
        GlmforgeError: the URL lacks an option, or a model on the disk has one of a server.
    """
    if "://" not in options.model:
        if given := next((name for name in ("model_name", "api_key_env") if getattr(options, name)), None):
            raise GlmforgeError(f"--{given.replace('_', '-')}: needs the URL of a server as the model")
        return None
    if not options.model_name:
        raise GlmforgeError("a server needs --model-name, the name that it gives to the model (see its /v1/models)")
    with needed_for("evaluating a server"):
        from glmforge.evaluate.benchmarks.endpoint_model import Server
    key = api_key(options.api_key_env, "--api-key-env")
    return Server(options.model, options.model_name, key, options.timeout, options.connections)


def api_key(variable: str, option: str) -> str:
    """The key in an environment variable; "" without a variable."""
    if variable and not os.environ.get(variable):
        raise GlmforgeError(f"{option}: the environment variable {variable} is not set")
    return os.environ.get(variable, "")


def benchmark_names(given: Sequence[str]) -> list[str]:
    """Each once. Raises `GlmforgeError` if there is none."""
    names = list(dict.fromkeys(name for text in given for name in text.split(",") if name))
    if not names:
        raise GlmforgeError("--benchmark: name at least one")
    return names


def refuse_ranks(what: str) -> None:
    """Raises `GlmforgeError` under torchrun."""
    from glmforge.runtime.launch import LaunchEnvironment

    if LaunchEnvironment.read().world_size > 1:
        raise GlmforgeError(f"{what}: runs in one process; start it without torchrun")
