"""What the dashboards show: the same panels for Grafana and for our own page.

Queries read the names of `MetricTable.exported` and what `rules/recording.yml` records; `$run` is a regular expression
that selects runs, `$__rate_interval` a window that holds several scrapes. A panel with `needs` has data only where
there is such hardware or such a run. The test that asks a real Prometheus passes over what is `NOT_EVERYWHERE` alone.

No panel has a line for each rank, GPU or node: of thousands it shows the extremes and the median, or the worst few.
"""

from typing import NamedTuple

GPU = "an NVIDIA GPU"
SEVERAL_RANKS = "several ranks whose communication is measured"
CLUSTER = "a job of glmforge launch that was requeued"
LONG = "a run of more than half an hour"
SERVER = "glmforge serve or vLLM"
RL = "a run of stage rl"
NOT_EVERYWHERE = frozenset({GPU, CLUSTER, LONG})
"""What a test on any machine cannot have."""


class Query(NamedTuple):
    """PromQL, and how its series are called: `{{label}}` is the value of a label."""

    expr: str
    legend: str


class Panel(NamedTuple):
    """One picture. `unit` is one of Grafana's; `needs` is empty where every run has the data."""

    title: str
    unit: str
    queries: tuple[Query, ...]
    needs: str = ""


class Dashboard(NamedTuple):
    """`uid` is its name in addresses and of its file."""

    uid: str
    title: str
    panels: tuple[Panel, ...]


def _of_runs(name: str, legend: str = "{{run}}") -> Query:
    """A metric of rank 0 of the selected runs."""
    return Query(f'glmforge_{name}{{run=~"$run"}}', legend)


def _one(title: str, unit: str, name: str, legend: str = "{{run}}", needs: str = "") -> Panel:
    return Panel(title, unit, (_of_runs(name, legend),), needs)


def _recorded(title: str, unit: str, name: str, needs: str = "", by: str = "{{run}}") -> Panel:
    selected = '{run=~"$run"}' if name.startswith("run:") else ""
    return Panel(title, unit, (Query(f"{name}{selected}", by),), needs)


def _spread(metric: str, label: str = "", by: str = "by (run) ") -> tuple[Query, ...]:
    """Of all ranks of a run, or of all GPUs."""
    words = (("max {0}({1})", "highest"), ("quantile {0}(0.5, {1})", "median"), ("min {0}({1})", "lowest"))
    return tuple(Query(expr.format(by, metric), f"{label}{word}") for expr, word in words)


def _of_ranks(title: str, unit: str, name: str) -> Panel:
    return Panel(title, unit, _spread(f'glmforge_{name}{{run=~"$run"}}', "{{run}} "))


def _gpus(title: str, unit: str, name: str) -> Panel:
    return Panel(title, unit, _spread(name, by=""), GPU)


def _worst_gpus(title: str, name: str) -> Panel:
    return Panel(title, "none", (Query(f"topk({_FEW}, {name} > 0)", "{{hostname}} {{gpu}}"),), GPU)


def _quantiles(title: str, name: str) -> Panel:
    rate = f"sum by (le, model_name) (rate(vllm:{name}_bucket[$__rate_interval]))"
    shares = ((0.5, "median"), (0.99, "99 %"))
    queries = (Query(f"histogram_quantile({share}, {rate})", f"{{{{model_name}}}} {word}") for share, word in shares)
    return Panel(title, "s", tuple(queries), SERVER)


_FEW = 10
"""Lines of the machines that are worst off."""
_NETWORK = f"topk({_FEW}, sum by (instance) (rate(node_network_{{0}}_bytes_total[$__rate_interval])))"
_AVAILABLE = "node_memory_MemAvailable_bytes / node_memory_MemTotal_bytes"
_FREE = 'node_filesystem_avail_bytes{fstype!~"tmpfs|overlay|squashfs"} / node_filesystem_size_bytes'
_CORES = 'on (instance) count by (instance) (node_cpu_seconds_total{mode="idle"})'
_SLOWEST = 'max by (run, __name__) ({{__name__=~"glmforge_comm_{0}_.+",run=~"$run"}})'
_STEP_RATE = 'rate(glmforge_{0}{{run=~"$run"}}[$__rate_interval])'

RUN = Dashboard(
    "glmforge-run",
    "Run",
    (
        _one("Loss", "none", "loss"),
        Panel(
            "Progress", "percentunit",
            (Query('glmforge_step{run=~"$run"} / glmforge_total_steps{run=~"$run"}', "{{run}}"),),
        ),
        _one("Learning rate", "none", "lr"),
        _one("Gradient norm", "none", "grad_norm"),
        _one("Tokens per second", "none", "tokens_per_second"),
        _of_ranks("Seconds per step, of all ranks", "s", "step_seconds"),
        _one("Model FLOPs utilisation", "percentunit", "mfu", needs=GPU),
        _one("Steps that were not finite", "none", "nonfinite_steps_total"),
        _one("Held-out bits per byte", "none", "bits_per_byte", "{{run}} {{source}}"),
        _one("Loss by source", "none", "source_loss", "{{run}} {{source}}"),
        _recorded("Seconds since the last record", "s", "run:record_age:seconds"),
        _one("Events", "none", "events_total", "{{run}} {{event}}"),
    ),
)  # fmt: skip
EXPERTS = Dashboard(
    "glmforge-experts",
    "Experts",
    (
        _one("Variation of expert loads (mean of layers)", "none", "load_cv_mean"),
        _one("Variation of expert loads (worst layer)", "none", "load_cv_max"),
        _one("Busiest expert above the mean (worst layer)", "none", "max_violation_max"),
        _recorded("Experts without tokens", "none", "run:dead_experts"),
        _one("Entropy of loads (worst layer)", "percentunit", "load_entropy_min"),
        _one("Correction bias: spread", "none", "bias_spread_max"),
        _one("Busiest expert above the mean, by layer", "none", "layer_max_violation", "{{run}} {{router}}"),
        _one("Experts without tokens, by layer", "none", "layer_dead_experts", "{{run}} {{router}}"),
    ),
)
COMMUNICATION = Dashboard(
    "glmforge-communication",
    "Communication",
    (
        Panel(
            "Time under way in the measured step, slowest rank", "s",
            (Query(_SLOWEST.format("seconds"), "{{run}} {{__name__}}"),), SEVERAL_RANKS,
        ),
        Panel(
            "Size of the buffers of that step", "bytes",
            (Query(_SLOWEST.format("bytes"), "{{run}} {{__name__}}"),), SEVERAL_RANKS,
        ),
        _recorded("Slowest rank to the median", "none", "run:straggler_ratio", SEVERAL_RANKS),
        _one("Slowest rank", "none", "slowest_rank", needs=SEVERAL_RANKS),
        _one("Ranks", "none", "world_size"),
        Panel(
            "Bytes through network interfaces, busiest machines", "Bps",
            (
                Query(_NETWORK.format("receive"), "{{instance}} in"),
                Query(_NETWORK.format("transmit"), "{{instance}} out"),
            ),
        ),
    ),
)  # fmt: skip
DATA = Dashboard(
    "glmforge-data",
    "Data and checkpoints",
    (
        _recorded("Share of a step that waits for data", "percentunit", "run:data:ratio"),
        _one("Label tokens by source", "none", "source_tokens", "{{run}} {{source}}"),
        _one("Passes through the sources", "none", "source_epochs", "{{run}} {{source}}"),
        _recorded("Age of the last checkpoint", "s", "run:checkpoint_age:seconds"),
        _one("Checkpoint speed", "Bps", "checkpoint_bytes_per_second"),
        Panel(
            "Training that waits for saves", "percentunit",
            (Query(_STEP_RATE.format("checkpoint_seconds_blocked_total"), "{{run}}"),),
        ),
        _one("Saves that failed", "none", "checkpoint_failures_total"),
        Panel(
            "Free space, fullest disks", "percentunit",
            (Query(f"bottomk({_FEW}, {_FREE})", "{{instance}} {{mountpoint}}"),),
        ),
        Panel(
            "Corpus: documents per second", "none",
            (Query('rate(glmforge_corpus_documents_total{run=~"$run"}[$__rate_interval])', "{{run}} {{stage}}"),),
        ),
        _one("Corpus: tasks", "none", "corpus_tasks", "{{run}} {{state}}"),
    ),
)  # fmt: skip
GOODPUT = Dashboard(
    "glmforge-goodput",
    "Goodput",
    (
        _one("Goodput", "percentunit", "goodput", needs=CLUSTER),
        _one("Node seconds lost", "s", "lost_node_seconds", "{{run}} {{cause}}", CLUSTER),
        _one("Node seconds allocated", "s", "allocated_node_seconds", needs=CLUSTER),
        _one("Seconds in the queue", "s", "queue_seconds", needs=CLUSTER),
        _recorded("Attempts before this one", "none", "run:attempts", CLUSTER),
        _one("Rollbacks", "none", "rollbacks"),
        _recorded("Speed against the run's own past", "percentunit", "run:speed:ratio", LONG),
    ),
)
FLEET = Dashboard(
    "glmforge-fleet",
    "Fleet",
    (
        Panel("Targets up", "none", (Query("sum by (job) (up)", "{{job}}"),)),
        Panel("Targets down", "none", (Query("sum by (job) (1 - up)", "{{job}}"),)),
        Panel("Firing alerts", "none", (Query('sum(ALERTS{alertstate="firing"}) or vector(0)', "alerts"),)),
        Panel("Load per core, busiest machines", "none", (
            Query(f"topk({_FEW}, node_load1 / {_CORES})", "{{instance}}"),
        )),
        Panel("Memory in use, fullest machines", "percentunit", (
            Query(f"topk({_FEW}, 1 - {_AVAILABLE})", "{{instance}}"),
        )),
        _of_ranks("Resident memory of ranks", "bytes", "rss_bytes"),
        _gpus("GPU utilisation", "percentunit", "gpu:utilization:ratio"),
        _gpus("GPU memory in use", "bytes", "gpu:memory_used:bytes"),
        _gpus("GPU temperature", "celsius", "gpu:temperature:celsius"),
        _gpus("GPU power", "watt", "gpu:power:watts"),
        Panel("GPUs throttled", "none", (Query("sum(gpu:throttled:bool)", "GPUs"),), GPU),
        _worst_gpus("Uncorrected memory errors", "gpu:ecc_uncorrected:total"),
        _worst_gpus("Last Xid error", "gpu:xid:last"),
        _recorded("Peak of allocated GPU memory", "percentunit", "run:device_memory:ratio", GPU),
    ),
)  # fmt: skip
REINFORCEMENT = Dashboard(
    "glmforge-rl",
    "Reinforcement learning",
    (
        _one("Reward", "none", "reward", needs=RL),
        _one("Reward by term", "none", "reward_terms", "{{run}} {{term}}", RL),
        _recorded("Entropy", "none", "run:rl_entropy", RL),
        _recorded("Gap between engine and trainer", "none", "run:rl_gap", RL),
        _one("Divergence from the reference", "none", "reference_kl", needs=RL),
        _one("Tokens that are clipped", "percentunit", "clip_share", needs=RL),
        _recorded("Groups without a spread of rewards", "percentunit", "run:rl_equal:ratio", RL),
        _recorded("Answers begun under earlier weights", "percentunit", "run:rl_stale:ratio", RL),
        _one("Age of the oldest answers", "none", "age_max", needs=RL),
        _one("Length of answers", "none", "answer_tokens", needs=RL),
        _one("Seconds for a rollout", "s", "rollout_seconds", needs=RL),
    ),
)
SERVING = Dashboard(
    "glmforge-serving",
    "Serving",
    (
        _quantiles("Time to the first token", "time_to_first_token_seconds"),
        _quantiles("Time between tokens", "inter_token_latency_seconds"),
        _quantiles("Time of a request", "e2e_request_latency_seconds"),
        Panel("Requests", "none", (
            Query("vllm:num_requests_running", "{{model_name}} running"),
            Query("vllm:num_requests_waiting", "{{model_name}} waiting"),
        ), SERVER),
        Panel("Cache in use", "percentunit", (Query("vllm:kv_cache_usage_perc", "{{model_name}}"),), SERVER),
        Panel("Tokens per second", "none", (
            Query("rate(vllm:prompt_tokens_total[$__rate_interval])", "{{model_name}} of prompts"),
            Query("rate(vllm:generation_tokens_total[$__rate_interval])", "{{model_name}} of answers"),
        ), SERVER),
    ),
)  # fmt: skip

DASHBOARDS = (RUN, EXPERTS, COMMUNICATION, DATA, GOODPUT, FLEET, REINFORCEMENT, SERVING)
