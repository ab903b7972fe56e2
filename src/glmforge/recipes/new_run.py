"""A first configuration: a complete file for the user's tokenizer, text and machine.

What to train follows from what is there. The model's vocabulary and special ids are the tokenizer's. The number of
steps fills the time that is given, measured on this machine, or else trains until more of the same text would teach
little: four times through it (after that repetition pays less and less, arXiv:2305.16264), or twenty tokens per active
parameter (arXiv:2203.15556), whichever comes first.
"""

import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jinja2
import torch
import yaml

from glmforge.config.load import load_config, load_model_config
from glmforge.config.model import ModelConfig
from glmforge.config.presets import preset_names
from glmforge.config.schema import RunConfig
from glmforge.data.tokens.shards import TokenShard, shard_paths
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import ConfigError
from glmforge.observe.units import format_count
from glmforge.plan.counts.parameters import count_parameters
from glmforge.recipes.train import measure_step_seconds

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # what `name` in a configuration may be
MAX_EPOCHS = 4
TOKENS_PER_PARAMETER = 20
MIN_STEPS = 50
HELD_OUT_SUFFIX = "-held-out"
"""What 'glmforge data tokenize --held-out' adds to the name of a shard."""


@dataclass(frozen=True)
class NewRunOptions:
    """What the user says; the rest is chosen.

    Attributes:
        file: the YAML file that is to be written; its name without the suffix is the run's.
        tokenizer: directory of the tokenizer.
        sources: prefixes of token shards, one or more.
        held_out: prefixes of shards to evaluate on; None takes those that lie beside the sources.
        model: a preset; None takes `small_1b` on a GPU and `demo` elsewhere.
        minutes: how long training may take on this machine.
        tokens: how much to train, instead of a time.
    """

    file: Path
    tokenizer: Path
    sources: Sequence[Path]
    held_out: Sequence[Path] | None = None
    model: str | None = None
    minutes: float | None = None
    tokens: float | None = None


@dataclass(frozen=True)
class NewRun:
    """A configuration that was made.

    Attributes:
        text: the file's content.
        config: the same, loaded.
        num_epochs: how often the text is passed through.
        step_seconds: how long a step takes on this machine; None if no time was given.
        held_out: shards that are evaluated on.
    """

    text: str
    config: RunConfig
    num_epochs: float
    step_seconds: float | None
    held_out: Sequence[Path]


@dataclass(frozen=True)
class _Scale:
    """Settings that go with the size of a model: sequences, batch, learning rate of Muon."""

    seq_len: int
    batch_size: int
    micro_batch_size: int
    lr: str
    min_lr: str
    router_bias_rate: str


_SMALL = _Scale(256, 8, 8, "1e-2", "1e-3", "1e-2")  # up to some ten million parameters
_MEDIUM = _Scale(2048, 64, 4, "1e-3", "1e-4", "1e-3")  # up to some billions
_SMALL_WIDTH, _MEDIUM_WIDTH = 512, 1536


def new_run(options: NewRunOptions) -> NewRun:
    """Make a configuration; nothing is written.

    Raises `ConfigError` or `DataError` for what cannot be: a tokenizer or shards that are missing or belong to
    different tokenizers, an unknown preset, a model that is too large to be given settings without a plan.
    """
    name = options.file.stem
    if options.minutes is not None and options.tokens is not None:
        raise ConfigError("--minutes and --tokens: pass only one of them")
    if not RUN_NAME.fullmatch(name):
        raise ConfigError(f"{str(options.file)!r}: names the run, so use only letters, digits, '.', '_' and '-'")
    tokenizer = Tokenizer.load(options.tokenizer)
    num_tokens = _count_tokens(options.sources, tokenizer)
    held_out = _held_out(options)
    preset = options.model or ("small_1b" if torch.cuda.is_available() else "demo")
    model = load_model_config(preset)
    scale = _scale_of(model, preset)
    values: dict[str, Any] = {
        "name": name,
        "file": options.file,
        "output_dir": Path("runs") / name,
        "preset": preset,
        "vocab_size": tokenizer.padded_vocab_size,
        "eos_token_id": list(tokenizer.stop_ids),
        "pad_token_id": tokenizer.end_of_text_id,
        "tokenizer": options.tokenizer,
        "sources": _named(options.sources),
        "held_out": _named(held_out),
        "tokens_there": format_count(num_tokens),
        "minutes": f"{options.minutes:g}" if options.minutes is not None else "",
        **vars(scale),
    }
    per_step = scale.seq_len * scale.batch_size
    enough = min(MAX_EPOCHS * num_tokens, TOKENS_PER_PARAMETER * _active_parameters(model, tokenizer))
    steps, seconds, compute = math.ceil((options.tokens or enough) / per_step), None, "fp32"
    if torch.cuda.is_available():
        compute = "bf16"
    if options.minutes is not None:
        seconds, compute = _measure(values)
        steps = min(int(options.minutes * 60 / seconds), math.ceil(MAX_EPOCHS * num_tokens / per_step))
    text = _render(values, max(steps, MIN_STEPS), per_step, num_tokens, compute)
    config = load_config(text)
    return NewRun(text, config, config.num_tokens / num_tokens, seconds, held_out)


def _count_tokens(prefixes: Sequence[Path], tokenizer: Tokenizer) -> int:
    total = 0
    for prefix in prefixes:
        shard = TokenShard(prefix)
        shard.check_tokenizer(tokenizer)
        total += shard.num_tokens
    return total


def _held_out(options: NewRunOptions) -> Sequence[Path]:
    """The shards named, or those that lie beside the sources under the name that `data tokenize` gives them."""
    if options.held_out is not None:
        for prefix in options.held_out:
            TokenShard(prefix)
        return options.held_out
    beside = [Path(f"{prefix}{HELD_OUT_SUFFIX}") for prefix in options.sources]
    return [prefix for prefix in beside if shard_paths(prefix)[0].is_file()]


def _named(prefixes: Sequence[Path]) -> list[dict[str, str]]:
    """Sources for the file, each with a name of its own."""
    names = [prefix.name for prefix in prefixes]
    if len(set(names)) < len(names):
        names = ["_".join(prefix.parts[-2:]) for prefix in prefixes]
    return [{"name": name, "path": str(prefix)} for name, prefix in zip(names, prefixes, strict=True)]


def _scale_of(model: ModelConfig, preset: str) -> _Scale:
    if model.hidden_size > _MEDIUM_WIDTH:
        small = [name for name in preset_names() if load_model_config(name).hidden_size <= _MEDIUM_WIDTH]
        raise ConfigError(
            f"--model: {preset} needs many GPUs; start from a file in configs/ and 'glmforge plan', or choose one "
            f"of {', '.join(small)}"
        )
    scale = _SMALL if model.hidden_size <= _SMALL_WIDTH else _MEDIUM
    return replace(scale, seq_len=min(scale.seq_len, model.max_position_embeddings))


def _active_parameters(model: ModelConfig, tokenizer: Tokenizer) -> int:
    fields = {"vocab_size": tokenizer.padded_vocab_size, "eos_token_id": [0], "pad_token_id": 0}
    return count_parameters(model.model_copy(update=fields)).active.total


def _measure(values: dict[str, Any]) -> tuple[float, str]:
    """Seconds of a step in the arithmetic that is faster here, and which that is."""
    choices = ("bf16",) if torch.cuda.is_available() else ("fp32", "bf16")
    trial = [(load_config(_render(values, MIN_STEPS, 1, 1, compute)), compute) for compute in choices]
    return min((measure_step_seconds(config), compute) for config, compute in trial)


def _yaml_scalar(value: str | Path) -> str:
    """A name or path as YAML reads it back, in quotation marks where it needs them."""
    return yaml.safe_dump(str(value), width=math.inf, allow_unicode=True).removesuffix("\n").removesuffix("\n...")


def _render(values: dict[str, Any], steps: int, per_step: int, num_tokens: int, compute: str) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("glmforge", "recipes"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"scalar": _yaml_scalar, "word": lambda path: shlex.quote(str(path))}
    tokens = steps * per_step
    return environment.get_template("new_run.yaml.jinja").render(
        values,
        steps=steps,
        tokens=format_count(tokens),
        epochs=f"{tokens / num_tokens:.2g}",
        tokens_per_step=f"{per_step:,}",
        warmup_steps=min(2000, max(1, steps // 40)),
        every_steps=max(1, steps // 10),
        evaluate_every=max(1, steps // 5),
        compute=compute,
    )
