"""A model and its tokenizer from wherever they lie: a run, a checkpoint, a Hugging Face directory, a preset."""

from collections import ChainMap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from glmforge.checkpoint.adapter.base import base_weights, check_base
from glmforge.checkpoint.convert import HfTensors, import_hf
from glmforge.checkpoint.find import find_checkpoint, names_step_of_run
from glmforge.checkpoint.format.meta import read_meta, stored_config
from glmforge.checkpoint.format.read import StoredTensors
from glmforge.checkpoint.format.sharded_adapter import read_adapter
from glmforge.checkpoint.merged import MergedWeights
from glmforge.config.load import load_model_config
from glmforge.config.model import ModelConfig
from glmforge.config.parameters import EMBEDDING, parameter_table
from glmforge.config.presets import preset_names
from glmforge.config.schema import RunConfig
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.data.tokens.tokenizer_file import TOKENIZER_FILE
from glmforge.errors import CheckpointError, GlmforgeError
from glmforge.files import kind_of, shown
from glmforge.model.init import InitialWeights
from glmforge.model.transformer import GlmMoe

CACHE_LINE = 64

MODEL_PREFIX = "model."
TOKENIZER_DIRECTORY = "tokenizer"  # beside the checkpoints of a run


@dataclass(frozen=True)
class StoredModel:
    """The model part of a training checkpoint, read tensor by tensor when requested.

    Attributes:
        path: the checkpoint directory.
        step: optimizer steps done.
        run: the configuration it was trained with.
        weights: parameter and buffer names to tensors (fp32, or bf16 of what `precision.frozen` held so); of a run with
            adapters with these merged.
    """

    path: Path
    step: int
    run: RunConfig
    weights: Mapping[str, Tensor]


def open_checkpoint(path: Path) -> StoredModel:
    """Open the checkpoint that `path` means, see `find_checkpoint`. Raises `CheckpointError`."""
    path = find_checkpoint(path)
    meta = read_meta(path)
    run, weights = stored_config(path, meta), StoredTensors(path, MODEL_PREFIX)
    if run.lora is None:
        return StoredModel(path, meta.step, run, weights)
    return StoredModel(path, meta.step, run, MergedWeights(weights, _base_of(path, run), run.model, run.lora))


def _base_of(path: Path, run: RunConfig) -> Mapping[str, Tensor]:
    """What the adapters of the checkpoint `path` were trained on, from where it lay then."""
    trained_on = read_adapter(path).base
    source = Path(trained_on.source)
    if kind_of(source, error=CheckpointError) is None:
        raise CheckpointError(
            f"{path}: contains only adapters, and their base {shown(source)} is missing; restore it, or merge with a "
            "copy ('glmforge adapter merge --full --base')"
        )
    check_base(path, trained_on, base_weights(source))
    is_hf = kind_of(source / "config.json", error=CheckpointError) is not None
    base: Mapping[str, Tensor] = HfTensors(source) if is_hf else StoredTensors(source, MODEL_PREFIX)
    return ChainMap(base, InitialWeights(run.model, run.seed))  # type: ignore[arg-type] # is only read


def load_pretrained(
    source: str | Path, *, dtype: torch.dtype | None = None, device: torch.device | str = "cpu"
) -> GlmMoe:
    """A model ready for `logits`, for an `Engine` or for training of your own.

    Args:
        source: a preset's name (random weights of seed 0), a run directory (its newest complete checkpoint), a step of
        a
            run (RUN@STEP), one checkpoint, or a directory in Hugging Face format.
        dtype: of the weights and activations; None keeps the stored one (fp32 for presets and checkpoints). Router
            biases stay fp32.
        device: where the weights go.

    Raises:
        CheckpointError: nothing loadable there, or what is there is damaged.
        GlmforgeError: there is no such device.
    """
    _check_device(device)
    if str(source) in preset_names("model"):
        model = GlmMoe.create(load_model_config(str(source)))
        return _finish(model.config, model.state_dict().items(), dtype, device)
    path = Path(source)
    if kind_of(path / "config.json", error=CheckpointError) is not None:
        config, tensors = import_hf(path, dtype=dtype)
        return _finish(config, tensors, dtype, device)
    if kind_of(path, error=CheckpointError) is None and not names_step_of_run(path):
        presets = ", ".join(preset_names("model"))
        raise CheckpointError(
            f"{shown(path)}: no such directory; pass a run, a checkpoint or an export, or for random weights the name "
            f"of a preset: {presets}"
        )
    stored = open_checkpoint(path)
    return _finish(stored.run.model, stored.weights.items(), dtype or torch.float32, device)


def load_tokenizer(source: str | Path) -> Tokenizer:
    """The tokenizer of what `load_pretrained` loads: a run, a checkpoint, an export; or a tokenizer's own directory.

    A run keeps a copy of its tokenizer; without it, as in a checkpoint that was copied away alone, the one that the
    configuration names is taken. Raises `CheckpointError` or `DataError` if none is found.
    """
    path = Path(source)
    if not path.exists() and str(source) in preset_names("model"):
        raise CheckpointError(
            f"{source}: a preset has random weights and no tokenizer; pass a run, a checkpoint or an export"
        )
    if (path / TOKENIZER_FILE).is_file():
        return Tokenizer.load(path)
    if (path / "config.json").is_file():
        raise CheckpointError(f"{path}: has a model but no {TOKENIZER_FILE}; add the tokenizer's files")
    return Tokenizer.load(tokenizer_directory(open_checkpoint(path)))


def load_with_tokenizer(
    source: str | Path,
    tokenizer_dir: Path | None = None,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
) -> tuple[GlmMoe, Tokenizer | None]:
    """As `load_pretrained`, and its tokenizer or the one in `tokenizer_dir`; a preset has none.

    Raises `CheckpointError`, also where the tokenizer has more tokens than the model, and `DataError`.
    """
    tokenizer = None
    if tokenizer_dir is not None:
        tokenizer = Tokenizer.load(tokenizer_dir)
    elif str(source) not in preset_names("model"):
        tokenizer = load_tokenizer(source)
    model = load_pretrained(source, dtype=dtype, device=device)
    if tokenizer is not None:
        check_vocabulary(tokenizer, model.config, tokenizer_dir or source)
    return model, tokenizer


def check_vocabulary(tokenizer: Tokenizer, config: ModelConfig, source: str | Path) -> None:
    """Raise `CheckpointError` if the tokenizer, which came from `source`, has more tokens than the model."""
    if tokenizer.vocab_size > config.vocab_size:
        raise CheckpointError(
            f"{source}: the tokenizer has {tokenizer.vocab_size:,} tokens, but the model embeds "
            f"{config.vocab_size:,}; pass the tokenizer it was trained with (--tokenizer)"
        )


def tokenizer_directory(stored: StoredModel) -> Path:
    """The run's copy of its tokenizer; where the checkpoint lies alone, what the configuration names.

    Checkpoints may lie apart from the run (`checkpoint.dir`), which its configuration then leads to.
    """
    runs = stored.path.parent.parent, stored.run.output_dir
    kept = (run / TOKENIZER_DIRECTORY for run in runs if (run / TOKENIZER_DIRECTORY / TOKENIZER_FILE).is_file())
    return next(kept, stored.run.data.tokenizer)


def _check_device(device: torch.device | str) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # by kind of device and build of torch
        raise GlmforgeError(f"device '{device}': not available to torch; use cpu or an available device") from error


def _finish(
    config: ModelConfig,
    tensors: Iterable[tuple[str, Tensor]],
    dtype: torch.dtype | None,
    device: torch.device | str,
) -> GlmMoe:
    with torch.device("meta"):
        model = GlmMoe(config)
    table = parameter_table(config)
    state = {name: _aligned(tensor.to(device, None if table[name].fp32 else dtype)) for name, tensor in tensors}
    model.load_state_dict(state, assign=True)
    model.compute_dtype = state[EMBEDDING].dtype
    return model.eval()


def _aligned(tensor: Tensor) -> Tensor:
    """`tensor` on a border of cache lines, as torch allocates: a mapped file has it anywhere, and a processor reads
    vectors that lie across a border twice."""
    return tensor if tensor.data_ptr() % CACHE_LINE == 0 else tensor.clone()
