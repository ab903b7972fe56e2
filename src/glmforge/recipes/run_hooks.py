"""The hooks that a run's configuration asks for, in the order in which they are called.

What measures a step comes first, so that no other hook's work is measured with it; what saves comes last, so that the
others' states are those of the step.
"""

from functools import partial

from glmforge.config.schema import RunConfig
from glmforge.evaluate.bits_per_byte import evaluate_held_out
from glmforge.recipes.run_data import RunData
from glmforge.training.hooks import (
    AnomalyHook,
    CheckpointHook,
    CommunicationHook,
    ControlHook,
    DebugHook,
    EarlyStopping,
    EvaluationHook,
    MetricsHook,
    PreemptionHook,
    ProfileHook,
    RunLockHook,
    SpikeHook,
    StragglerHook,
    WatchdogHook,
)
from glmforge.training.trainer import Hook


def run_hooks(config: RunConfig, data: RunData, checkpoints: CheckpointHook) -> list[Hook]:
    """The hooks that `config` asks for but the last one, `checkpoints`, in the order they are to be called in."""
    root, observe, faults = config.output_dir, config.observe, config.fault_tolerance
    measured = [every for every in (observe.communication_every, observe.straggler_every) if every is not None]
    communication = CommunicationHook(*measured) if measured else None
    stragglers = None
    if observe.straggler_every is not None and communication is not None:
        stragglers = StragglerHook(root, observe.straggler_every, observe.straggler_ratio, communication)
    debug, profile = DebugHook(observe.debug), ProfileHook(root, communication)
    recorders = [hook for hook in (communication, stragglers, debug, checkpoints) if hook is not None]
    hooks: list[Hook | None] = [
        RunLockHook(root),
        WatchdogHook(root, faults.hang_timeout_s) if faults.hang_timeout_s is not None else None,
        communication,
        stragglers,
        PreemptionHook(root),
        ControlHook(root, profile),
        profile,
        debug,
        MetricsHook(root, recorders),
        AnomalyHook(root, observe.anomalies) if observe.anomalies is not None else None,
        SpikeHook(root, faults.spikes) if faults.spikes is not None else None,
    ]
    if observe.evaluate_every is not None:
        evaluate = partial(
            evaluate_held_out,
            held_out=data.held_out,
            tokenizer=data.tokenizer,
            seq_len=max(phase.seq_len for phase in config.phases),
            max_tokens=observe.evaluate_tokens,
        )
        stopping = EarlyStopping(observe.early_stopping) if observe.early_stopping else None
        hooks.append(EvaluationHook(root, observe.evaluate_every, evaluate, stopping))
    return [hook for hook in hooks if hook is not None]
