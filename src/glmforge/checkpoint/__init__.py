"""Checkpoints that are whole or not there: save, find, verify, load on any number of ranks, retain."""

from glmforge.checkpoint.load import load_checkpoint, load_latest, load_rng_state
from glmforge.checkpoint.meta import CheckpointMeta, read_meta
from glmforge.checkpoint.read import StoredTensors
from glmforge.checkpoint.retain import apply_retention
from glmforge.checkpoint.save import save_checkpoint
from glmforge.checkpoint.store import latest_checkpoint, list_checkpoints
from glmforge.checkpoint.verify import verify_checkpoint

__all__ = [
    "CheckpointMeta",
    "StoredTensors",
    "apply_retention",
    "latest_checkpoint",
    "list_checkpoints",
    "load_checkpoint",
    "load_latest",
    "load_rng_state",
    "read_meta",
    "save_checkpoint",
    "verify_checkpoint",
]
