"""Checkpoints that are whole or not there: save, find, verify, load on any number of ranks, retain."""

from glmforge.checkpoint.format.meta import CheckpointMeta, read_meta
from glmforge.checkpoint.format.read import StoredTensors
from glmforge.checkpoint.format.store import latest_checkpoint, list_checkpoints
from glmforge.checkpoint.format.verify import verify_checkpoint
from glmforge.checkpoint.load import load_checkpoint, load_latest, load_rng_state
from glmforge.checkpoint.policy.retain import apply_retention
from glmforge.checkpoint.save import save_checkpoint

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
