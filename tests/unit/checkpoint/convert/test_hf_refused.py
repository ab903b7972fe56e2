"""The operating system refuses to write an export. Not in `test_hf`: the child would load transformers."""

import resource
import signal
from pathlib import Path

import torch

from glmforge.checkpoint.convert import export_hf
from glmforge.config import load_model_config
from glmforge.config.parameters import parameter_table
from glmforge.errors import CheckpointError
from helpers.distributed import run_ranks


def export_over_the_limit(root: Path) -> str:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # so that write() fails instead of ending the process
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    config = load_model_config("tiny")
    state = {name: torch.zeros(shape) for name, shape in parameter_table(config).shapes().items()}
    try:
        export_hf(state, config, root / "hf")
    except CheckpointError as error:
        return str(error)
    return ""


def test_a_disk_that_refuses_leaves_nothing_behind(tmp_path):
    (message,) = run_ranks(export_over_the_limit, 1, tmp_path, init_group=False)
    assert "model-00001-of-00001.safetensors was not written" in message
    assert "File too large" in message
    assert not list(tmp_path.iterdir())
