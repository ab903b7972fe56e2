"""Faults that alerts have to report, minute by minute: for promtool, and for a real Prometheus with short minutes.

Each case has the series of a healthy time and of the fault, and the minutes at which the alert has to begin and end to
fire: the first minute in which the expression is true, plus `for`. A window of N minutes has N + 1 samples here.
Cases that must not fire (`fires` is None) lie just below a threshold, or are what a simpler rule takes for a fault.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

Series = Callable[[float], float | None]
"""The value at a minute; None: there is none, and Prometheus knows it."""

_RUN = 'job="glmforge",run="r",stage="pretrain",rank="0"'
_GPU = 'job="gpu",gpu="0",uuid="u",hostname="n1"'
_DCGM = 'job="gpu",gpu="0",UUID="u",Hostname="n1"'
_DISK = 'job="node",instance="n1",mountpoint="/data",device="d"'


@dataclass(frozen=True)
class Case:
    """`series` by name and labels; those of timestamps are seconds since minute 0."""

    alert: str
    what: str
    series: Mapping[str, Series]
    fires: int | None = None
    resolves: int | None = None
    until: int = 150
    ends: int | None = None
    """The minute in which the run ends in order; its exporter still answers for half an hour, then it is no target."""

    @property
    def id(self) -> str:
        return f"{self.alert}: {self.what}"

    def ended_in_order(self) -> "Case":
        """The same, but the run ends a few minutes before the alert would fire."""
        assert self.fires is not None
        what = f"{self.what}, but the run ends in order"
        return replace(self, what=what, fires=None, resolves=None, ends=self.fires - 4)

    def all_series(self) -> dict[str, Series]:
        """With those of a run that trains, if the case has a run."""
        if not any('run="' in name for name in self.series):
            return dict(self.series)
        base: dict[str, Series] = {
            f'up{{{_RUN},instance="a"}}': lambda minute: 1,
            f"glmforge_run_ended{{{_RUN}}}": lambda minute: float(self.ends is not None and minute >= self.ends),
            f"glmforge_last_record_timestamp_seconds{{{_RUN}}}": lambda minute: 60 * minute,
            f"glmforge_world_size{{{_RUN}}}": lambda minute: 8,
        }
        return {name: self._until_end(one) for name, one in (base | dict(self.series)).items()}

    def _until_end(self, one: Series) -> Series:
        return lambda minute: None if self.ends is not None and minute > self.ends + 30 else one(minute)


def step(before: float | None, after: float | None, at: float = 60, until: float = 1e9) -> Series:
    """`after` from minute `at` to `until`, `before` otherwise."""
    return lambda minute: after if at <= minute < until else before


def stops(every: float, at: float, until: float) -> Series:
    """The time of something that happens every so many minutes, from `at` to `until` no more."""
    return lambda minute: 60 * every * ((at if at <= minute < until else minute) // every)


def _gauge(metric: str, one: Series, labels: str = _RUN) -> dict[str, Series]:
    return {f"{metric}{{{labels}}}": one}


def _run(metric: str, before: float, after: float, until: float = 100) -> dict[str, Series]:
    return _gauge(f"glmforge_{metric}", step(before, after, until=until))


def _level(alert: str, metric: str, levels: tuple[float, float, float], times: tuple[int, int, int]) -> list[Case]:
    """A level that is too high (or low) from minute 60 on, and one that is just not.

    `levels`: usual, too much, allowed; `times`: end of the fault, fires, resolves."""
    usual, bad, allowed = levels
    end, fires, resolves = times
    return [
        Case(alert, f"{metric} {bad}", _run(metric, usual, bad, end), fires, resolves),
        Case(alert, f"{metric} {allowed} is allowed", _run(metric, usual, allowed, end)),
    ]


def _loss(spacing: float, rise: Series) -> dict[str, Series]:
    """About 2, with noise whose quartiles are 2 * `spacing` apart."""
    return _gauge("glmforge_loss", lambda m: 2 + spacing * (int(m) * 7 % 5 - 2) + (rise(m) or 0))


def _disk(avail: Series, labels: str = 'fstype="ext4"', readonly: float = 0) -> dict[str, Series]:
    full = f"{_DISK},{labels}"
    values = {"avail_bytes": avail, "size_bytes": lambda m: 1000e9, "readonly": lambda m: readonly}
    return {f"node_filesystem_{name}{{{full}}}": one for name, one in values.items()}


_UP = f'up{{{_RUN},instance="a"}}'
_SAVED = f"glmforge_last_checkpoint_timestamp_seconds{{{_RUN}}}"
_STEP = f"glmforge_step{{{_RUN}}}"
_RECORDED = f"glmforge_last_record_timestamp_seconds{{{_RUN}}}"


def _engine(running: float) -> dict[str, Series]:
    """Writes 600 tokens a minute, but none between minutes 60 and 90."""
    labels = 'job="serving",instance="e:1",model_name="m"'
    return {
        f"vllm:num_requests_running{{{labels}}}": lambda m: running,
        f"vllm:num_requests_waiting{{{labels}}}": lambda m: 0,
        f"vllm:generation_tokens_total{{{labels}}}": lambda m: 600 * (min(m, 60) + max(m - 89, 0)),
    }


def _attempts(*starts: int) -> dict[str, Series]:
    """Attempts of a job, each with a minute without an exporter, and then one at another port."""
    times = [0, *starts, 10**9]

    def attempt(number: int) -> Series:
        return lambda m: number if times[number] <= m < times[number + 1] - 1 else None

    return {
        f'glmforge_attempts_before{{{_RUN},instance="a:{number}"}}': attempt(number) for number in range(len(times) - 1)
    }


XIDS = (48, 62, 64, 74, 79, 95, 119, 120)

CASES = [
    Case(
        "TrainingExporterDown",
        "killed, then taken off the list",
        {_UP: lambda m: step(1, 0)(m) if m < 80 else None},
        63,
        80,
    ),
    Case("TrainingExporterDown", "two minutes without an answer", {_UP: step(1, 0, until=62)}),
    Case("TrainingExporterDown", "ends in order", {_UP: step(1, None)}, ends=59),
    Case("TrainingStalled", "a record per minute, then none", {_RECORDED: stops(1, 60, 90)}, 78, 90),
    Case("TrainingStalled", "a record in 10 minutes, then none", {_RECORDED: stops(10, 60, 100)}, 93, 100),
    Case("TrainingStalled", "a record in 10 minutes, and an evaluation", {_RECORDED: stops(10, 60, 80)}),
    Case("TrainingStalled", "one record since it started", {_RECORDED: stops(1, 0, 70)}, 63, 70),
    Case(
        "TrainingStalled",
        "no record since it started",
        {_RECORDED: step(None, 4200, 70), _STEP: step(0, 1, 70)},
        62,
        70,
        120,
    ),
    Case(
        "TrainingStalled",
        "no record yet, but in the hour before",
        {_RECORDED: step(None, 1800, 20, 30), _STEP: step(0, 1, 20, 30)},
        until=85,
    ),
    *_level("NonFiniteSteps", "nonfinite_steps_total", (0, 3, 2), (999, 60, 75)),
    Case(
        "NonFiniteSteps",
        "resumed: 0 until the first record",
        _run("nonfinite_steps_total", 0, 5, 999) | {_RECORDED: step(None, 3600)},
    ),
    Case("LossSpike", "above 5 times the noise", _loss(0.015, step(0, 0.16, 120, 150)), 135, 150, 200),
    Case("LossSpike", "below 5 times the noise", _loss(0.015, step(0, 0.145, 120, 150)), until=200),
    Case("LossSpike", "above 5 %", _loss(0.002, step(0, 0.105, 120, 150)), 135, 150, 200),
    Case("LossSpike", "below 5 %", _loss(0.002, step(0, 0.095, 120, 150)), until=200),
    Case("LossSpike", "noisy: 7 instead of 2 now and then", _loss(0.015, lambda m: 5 * (int(m) % 20 == 0)), until=200),
    Case("RequeueStorm", "started three times again", _attempts(60, 65, 70), 70, 119),
    Case("RequeueStorm", "started twice again", _attempts(60, 65)),
    Case("CheckpointTooOld", "every 15 minutes, then none", {_SAVED: stops(15, 60, 120)}, 111, 120),
    Case("CheckpointTooOld", "every 15 minutes, one left out", {_SAVED: stops(15, 60, 105)}),
    Case("CheckpointTooOld", "every 2 minutes, then none", {_SAVED: stops(2, 60, 110)}, 96, 110),
    Case("CheckpointTooOld", "every 2 minutes, half an hour none", {_SAVED: stops(2, 60, 92)}),
    Case("CheckpointTooOld", "four hours ago", {_SAVED: step(-10800, 6000, 100)}, 66, 100),
    Case("CheckpointTooOld", "never", {_SAVED: step(None, 15600, 260)}, 245, 260, 270),
    Case("CheckpointTooOld", "never, but before", {_SAVED: step(None, 0, -1, 120)}, until=260),
    *_level("CheckpointFailing", "checkpoint_failures_total", (0, 1, 0), (999, 60, 120)),
    *_level("ThroughputLow", "tokens_per_second", (1000, 790, 810), (100, 85, 100)),
    Case("ThroughputLow", "as fast on fewer ranks", _run("tokens_per_second", 1000, 750) | _run("world_size", 8, 6)),
    *_level("Straggler", "straggler_ratio", (1.02, 1.16, 1.14), (100, 84, 101)),
    *(
        replace(case, series={**case.series, **_run("step_seconds", 1, 1)})
        for case in _level("LoaderStarving", "data_seconds", (0.02, 0.11, 0.095), (100, 79, 101))
    ),
    Case(
        "LoaderStarving",
        "samples answers meanwhile",
        _run("data_seconds", 0.9, 0.9) | _run("step_seconds", 1, 1) | _run("rollout_seconds", 0.9, 0.9),
    ),
    *_level("DeadExperts", "dead_experts", (0, 1, 0), (120, 105, 120)),
    Case("DeadExperts", "others in each batch", _gauge("glmforge_dead_experts", lambda m: float(int(m) % 20 > 0))),
    *(
        replace(case, series={**case.series, **_gauge("nvidia_gpu_memory_total_bytes", lambda m: 80e9, _GPU)})
        for case in _level("DeviceMemoryNearlyFull", "device_memory_bytes", (60e9, 78e9, 76e9), (100, 75, 100))
    ),
    Case(
        "DeviceMemoryNearlyFull",
        "the allocator holds 98 %",
        _run("device_memory_bytes", 60e9, 60e9)
        | _gauge("nvidia_gpu_memory_total_bytes", lambda m: 80e9, _GPU)
        | _gauge("nvidia_gpu_memory_used_bytes", lambda m: 78.4e9, _GPU),
    ),
    Case("MachineExporterDown", "gpu", _gauge("up", step(1, 0, until=90), 'job="gpu",instance="n1"'), 70, 90),
    Case("MachineExporterDown", "node", _gauge("up", step(1, 0, until=90), 'job="node",instance="n1"'), 70, 90),
    Case("MachineExporterDown", "node restarted", _gauge("up", step(1, 0, until=69), 'job="node",instance="n1"')),
    Case("DiskFull", "2.5 % free", _disk(step(300e9, 25e9, until=90)), 65, 90),
    Case("DiskFull", "3.5 % free", _disk(step(300e9, 35e9, until=90))),
    Case("DiskFull", "tmpfs", _disk(step(300e9, 1e9, until=90), 'fstype="tmpfs"')),
    Case("DiskFull", "read-only", _disk(step(300e9, 1e9, until=90), readonly=1)),
    Case("DiskFilling", "in 23 hours", _disk(lambda m: 199e9 - 0.1442e9 * m if m < 60 else 500e9), 31, 60, 100),
    Case("DiskFilling", "in 26 hours", _disk(lambda m: 199e9 - 0.1276e9 * m), until=100),
    Case("DiskFilling", "in 24 hours, a quarter free", _disk(lambda m: 230e9 - 0.161e9 * m), until=100),
    *(Case("GpuXid", str(xid), _gauge("nvidia_gpu_xid", step(0, xid, until=80), _GPU), 60, 80) for xid in XIDS),
    Case("GpuXid", "dcgm-exporter", _gauge("DCGM_FI_DEV_XID_ERRORS", step(0, 79, until=80), _DCGM), 60, 80),
    *(Case("GpuXid", f"{xid}, a program's", _gauge("nvidia_gpu_xid", step(0, xid), _GPU)) for xid in (13, 31, 43, 45)),
    Case(
        "GpuEccUncorrected",
        "one",
        _gauge("nvidia_gpu_ecc_errors_total", step(0, 1), _GPU + ',type="uncorrected"'),
        60,
        120,
    ),
    Case(
        "GpuEccUncorrected", "corrected", _gauge("nvidia_gpu_ecc_errors_total", step(0, 9), _GPU + ',type="corrected"')
    ),
    Case(
        "GpuEccUncorrected",
        "dcgm-exporter",
        _gauge("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", step(0, 1), _DCGM),
        60,
        120,
    ),
    Case("GpuHot", "88", _gauge("nvidia_gpu_temperature_celsius", step(70, 88, until=100), _GPU), 75, 100),
    Case("GpuHot", "86", _gauge("nvidia_gpu_temperature_celsius", step(70, 86, until=100), _GPU)),
    Case("GpuThrottled", "always", _gauge("nvidia_gpu_throttled", step(0, 1, until=100), _GPU), 78, 107),
    *(
        Case(
            "GpuThrottled",
            f"dcgm-exporter, bit {bit}",
            _gauge("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", step(1, bit + 4, until=100), _DCGM),
            78,
            107,
        )
        for bit in (8, 32, 64, 128)
    ),
    Case(
        "GpuThrottled", "capped", _gauge("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", step(1, 6 + 16 + 256, until=100), _DCGM)
    ),
    *_level("RlEngineGap", "gap_mean", (0.01, 0.052, 0.048), (100, 90, 100)),
    *_level("RlEntropyLow", "entropy", (0.3, 0.045, 0.055), (120, 105, 120)),
    *_level("RlGroupsWithoutSpread", "equal_share", (0.4, 0.82, 0.78), (120, 104, 121)),
    *_level("RlStaleAnswers", "stale_share", (0.2, 0.52, 0.48), (120, 104, 121)),
    Case("EngineDown", "killed", _gauge("up", step(1, 0, until=80), 'job="serving",instance="e:1"'), 62, 80),
    Case("EngineDown", "one scrape lost", _gauge("up", step(1, 0, until=62), 'job="serving",instance="e:1"')),
    Case("EngineSilent", "a request and no token", _engine(1), 70, 90),
    Case("EngineSilent", "nothing to do", _engine(0)),
]

ENDED = [
    case.ended_in_order()
    for case in CASES
    if case.fires is not None and case.alert != "TrainingExporterDown" and any('run="' in name for name in case.series)
]
