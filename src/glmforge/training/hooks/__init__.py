"""What happens around the training loop. One hook per file; none imports another."""

from glmforge.training.hooks.anomaly import AnomalyHook
from glmforge.training.hooks.benchmarks import BenchmarksHook
from glmforge.training.hooks.checkpoints import CheckpointHook
from glmforge.training.hooks.communication import CommunicationHook
from glmforge.training.hooks.control import ControlHook
from glmforge.training.hooks.debug import DebugHook
from glmforge.training.hooks.early_stopping import EarlyStoppingHook
from glmforge.training.hooks.elastic import ElasticHook
from glmforge.training.hooks.evaluation import EvaluationHook
from glmforge.training.hooks.job import JobHook
from glmforge.training.hooks.launcher import LauncherHook
from glmforge.training.hooks.logs import LogsHook
from glmforge.training.hooks.metrics import MetricsHook
from glmforge.training.hooks.needles import NeedlesHook
from glmforge.training.hooks.preemption import PreemptionHook
from glmforge.training.hooks.profile import ProfileHook
from glmforge.training.hooks.routers import RoutersHook
from glmforge.training.hooks.run_lock import RunLockHook
from glmforge.training.hooks.samples import SamplesHook
from glmforge.training.hooks.sources import SourcesHook
from glmforge.training.hooks.speed import SpeedHook
from glmforge.training.hooks.spikes import SpikeHook
from glmforge.training.hooks.straggler import StragglerHook
from glmforge.training.hooks.watchdog import WatchdogHook, prepare_environment

__all__ = [
    "AnomalyHook",
    "BenchmarksHook",
    "CheckpointHook",
    "CommunicationHook",
    "ControlHook",
    "DebugHook",
    "EarlyStoppingHook",
    "ElasticHook",
    "EvaluationHook",
    "JobHook",
    "LauncherHook",
    "LogsHook",
    "MetricsHook",
    "NeedlesHook",
    "PreemptionHook",
    "ProfileHook",
    "RoutersHook",
    "RunLockHook",
    "SamplesHook",
    "SourcesHook",
    "SpeedHook",
    "SpikeHook",
    "StragglerHook",
    "WatchdogHook",
    "prepare_environment",
]
