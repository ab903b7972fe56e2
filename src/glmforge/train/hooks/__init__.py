"""What happens around the training loop: metrics, evaluation, checkpoints. One hook per file."""

from glmforge.train.hooks.checkpoints import CheckpointHook
from glmforge.train.hooks.communication import CommunicationHook
from glmforge.train.hooks.evaluation import EvaluationHook
from glmforge.train.hooks.metrics import MetricsHook

__all__ = ["CheckpointHook", "CommunicationHook", "EvaluationHook", "MetricsHook"]
