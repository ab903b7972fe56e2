"""What happens around the training loop. One hook per file."""

from glmforge.train.hooks.anomaly import AnomalyHook
from glmforge.train.hooks.checkpoints import CheckpointHook
from glmforge.train.hooks.communication import CommunicationHook
from glmforge.train.hooks.control import ControlHook
from glmforge.train.hooks.debug import DebugHook
from glmforge.train.hooks.early_stopping import EarlyStopping
from glmforge.train.hooks.evaluation import EvaluationHook
from glmforge.train.hooks.metrics import MetricsHook
from glmforge.train.hooks.preemption import PreemptionHook
from glmforge.train.hooks.profile import ProfileHook
from glmforge.train.hooks.run_lock import RunLockHook
from glmforge.train.hooks.spikes import SpikeHook
from glmforge.train.hooks.straggler import StragglerHook
from glmforge.train.hooks.watchdog import WatchdogHook, prepare_environment

__all__ = [
    "AnomalyHook",
    "CheckpointHook",
    "CommunicationHook",
    "ControlHook",
    "DebugHook",
    "EarlyStopping",
    "EvaluationHook",
    "MetricsHook",
    "PreemptionHook",
    "ProfileHook",
    "RunLockHook",
    "SpikeHook",
    "StragglerHook",
    "WatchdogHook",
    "prepare_environment",
]
