"""The hooks that a run's configuration asks for. The order in which they are called they declare themselves."""

from collections.abc import Iterator

from glmforge.config.observe import ObserveConfig
from glmforge.config.schema import RunConfig
from glmforge.observe.job import job_of_this_process
from glmforge.observe.run import RunDirectory
from glmforge.training import hooks
from glmforge.training.profiling import Profiling
from glmforge.training.trainer import Hook


def run_hooks(config: RunConfig) -> Iterator[Hook]:
    """The hooks that `config` asks for but those that evaluate, which a recipe brings, and the one that saves."""
    root, observe, faults, profiling = config.output_dir, config.observe, config.fault_tolerance, Profiling()
    yield hooks.RunLockHook(root)
    if observe.logs is not None:
        yield hooks.LogsHook(RunDirectory(root), observe.logs)
    yield hooks.LauncherHook()
    yield hooks.WatchdogHook(root, faults.hang_timeout_s)
    yield from _measurements(observe, profiling)
    yield hooks.PreemptionHook()
    yield hooks.ControlHook(root, profiling)
    yield hooks.ProfileHook(root, profiling)
    if config.regularization.ewc is not None:
        yield hooks.ElasticHook(config.regularization.ewc)  # before those that look at gradients
    yield hooks.DebugHook(observe.debug)
    yield hooks.SpeedHook()
    yield hooks.SourcesHook()
    yield hooks.RoutersHook()
    yield hooks.MetricsHook()
    yield hooks.JobHook(root, job_of_this_process())
    if observe.anomalies is not None:
        yield hooks.AnomalyHook(observe.anomalies)
    if faults.spikes is not None:
        yield hooks.SpikeHook(faults.spikes)


def _measurements(observe: ObserveConfig, profiling: Profiling) -> Iterator[Hook]:
    measured = [every for every in (observe.communication_every, observe.straggler_every) if every is not None]
    if measured:
        yield hooks.CommunicationHook(profiling, *measured)
    if observe.straggler_every is not None:
        yield hooks.StragglerHook(observe.straggler_every, observe.straggler_ratio)
