"""What is known of single variables: read by nobody, gone, renamed, harmful. Each with what to do instead."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning"]

_TIME_LIMIT = "the time limit of collectives is `parallel.process_group_timeout_s` of the run's configuration"
_BENCHMARK = "in a program, torch.backends.cudnn.benchmark = True; no matrix product or attention of glmforge uses it"

UNREAD: dict[str, str] = {
    "NCCL_TIMEOUT": _TIME_LIMIT,
    "TORCH_NCCL_TIMEOUT": _TIME_LIMIT,
    "TORCH_NCCL_TIMEOUT_SEC": _TIME_LIMIT,
    "NCCL_COMM_TIMEOUT": _TIME_LIMIT,
    "GLOO_TIMEOUT": _TIME_LIMIT,
    "GLOO_TIMEOUT_SECONDS": _TIME_LIMIT,
    "TORCH_DISTRIBUTED_TIMEOUT": _TIME_LIMIT,
    "CUDNN_BENCHMARK": _BENCHMARK,
    "TORCH_CUDNN_BENCHMARK": _BENCHMARK,
    "PYTORCH_CUDNN_BENCHMARK": _BENCHMARK,
    "CUDNN_DETERMINISTIC": "in a program, torch.use_deterministic_algorithms(True)",
    "TORCH_NUM_THREADS": "OMP_NUM_THREADS",
    "PYTORCH_NUM_THREADS": "OMP_NUM_THREADS",
    "CUDA_ALLOW_TF32": "glmforge decides TF32 itself; leave it out",
    "NCCL_IB_GDR_ENABLE": "leave it out: GPUDirect RDMA is used where it works; NCCL_NET_GDR_LEVEL limits it",
    "NCCL_NET_GDR_ENABLE": "leave it out: GPUDirect RDMA is used where it works; NCCL_NET_GDR_LEVEL limits it",
    "NCCL_NVLINK_ENABLE": "leave it out: NVLink is used where it is",
    "DEEPSPEED_NVME_PATH": "`nvme_path` of offload_optimizer and of offload_param in DeepSpeed's configuration",
    "NCCL_IB_ENABLE": "leave it out: InfiniBand is used where it is; NCCL_NET=IB refuses anything else",
}
"""Variables that look right, and that scripts hand on to each other, but that no program reads -> what to do."""

GONE: dict[str, str] = {
    "NCCL_TREE_THRESHOLD": "NCCL 2.5 chooses algorithms by size itself: leave it out",
    "NCCL_LL_THRESHOLD": "NCCL 2.5 chooses protocols by size itself: leave it out",
    "NCCL_SINGLE_RING_THRESHOLD": "since NCCL 2.3: leave it out",
    "NCCL_RINGS": "since NCCL 2.5: NCCL_GRAPH_FILE, for those who must",
    "NCCL_IB_CUDA_SUPPORT": "since NCCL 2.4: NCCL_NET_GDR_LEVEL",
    "NCCL_IB_GDR_LEVEL": "since NCCL 2.4: NCCL_NET_GDR_LEVEL",
    "NCCL_CHECKS_DISABLE": "checks are off by default: NCCL_CHECK_POINTERS=1 puts them on",
    "TORCH_NCCL_AVOID_RECORD_STREAMS": "PyTorch always does so since 2.8: leave it out",
    "NCCL_AVOID_RECORD_STREAMS": "PyTorch always does so since 2.8: leave it out",
    "TRANSFORMERS_CACHE": "transformers 5 reads HF_HOME or HF_HUB_CACHE",
    "PYTORCH_TRANSFORMERS_CACHE": "transformers 5 reads HF_HOME or HF_HUB_CACHE",
    "PYTORCH_PRETRAINED_BERT_CACHE": "transformers 5 reads HF_HOME or HF_HUB_CACHE",
    "HF_HUB_ENABLE_HF_TRANSFER": "huggingface_hub 1.0 has no hf_transfer: HF_XET_HIGH_PERFORMANCE=1",
}
"""Variables that were read once -> since when, and what to do."""

RENAMED: dict[str, str] = {
    "PYTORCH_CUDA_ALLOC_CONF": "PYTORCH_ALLOC_CONF",
    "PYTORCH_HIP_ALLOC_CONF": "PYTORCH_ALLOC_CONF",
    "NCCL_ASYNC_ERROR_HANDLING": "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_BLOCKING_WAIT": "TORCH_NCCL_BLOCKING_WAIT",
    "NCCL_DESYNC_DEBUG": "TORCH_NCCL_DESYNC_DEBUG",
    "NCCL_ENABLE_TIMING": "TORCH_NCCL_ENABLE_TIMING",
    "NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK": "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "TORCH_FR_BUFFER_SIZE",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "TORCH_FR_DUMP_TEMP_FILE",
    "NCCL_MAX_NRINGS": "NCCL_MAX_CTAS",
    "NCCL_MIN_NRINGS": "NCCL_MIN_CTAS",
    "NCCL_MAX_NCHANNELS": "NCCL_MAX_CTAS",
    "NCCL_MIN_NCHANNELS": "NCCL_MIN_CTAS",
    "HUGGINGFACE_HUB_CACHE": "HF_HUB_CACHE",
    "HUGGINGFACE_ASSETS_CACHE": "HF_ASSETS_CACHE",
    "HUGGING_FACE_HUB_TOKEN": "HF_TOKEN",
    "TRANSFORMERS_OFFLINE": "HF_HUB_OFFLINE",
}
"""Old names that are still read -> new ones."""

SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY")
"""Never to be written into a file."""


@dataclass(frozen=True)
class Harm:
    """A value that works, and does what nobody wants in a training job."""

    name: str
    example: str
    when: Callable[[str], bool]
    severity: Severity
    says: str
    instead: str


def _is_on(value: str) -> bool:
    return value.lower() not in ("", "0", "false", "no", "off")


def _is_fixed(value: str) -> bool:
    return bool(value) and not value.startswith("^")


def _is_loopback(value: str) -> bool:
    return value.lstrip("=") == "lo"


HARMFUL: tuple[Harm, ...] = (
    Harm(
        "NCCL_ALGO", "Tree", _is_fixed, "error",
        "one choice for every size and call: most become slower, and calls that the algorithm cannot do fail (Tree has "
        "no all-gather, which FSDP needs)",
        "leave it out: NCCL chooses by size; `^Tree` excludes one",
    ),
    Harm(
        "NCCL_PROTO", "Simple", lambda value: _is_fixed(value) and "ll128" not in value.lower(), "error",
        "one choice for every size: Simple makes small messages several times slower, LL large ones",
        "leave it out: NCCL chooses by size; `^LL128` excludes one",
    ),
    Harm(
        "NCCL_PROTO", "LL128", lambda value: _is_fixed(value) and "ll128" in value.lower(), "error",
        "corrupts data where the hardware does not have LL128",
        "leave it out: NCCL uses LL128 where it is safe",
    ),
    Harm(
        "NVIDIA_TF32_OVERRIDE", "1", _is_on, "error",
        "rounds the products that are fp32 on purpose, the router's above all",
        "leave it out: glmforge says itself where TF32 is used",
    ),
    Harm(
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1", _is_on, "error",
        "rounds the products that are fp32 on purpose, the router's above all",
        "leave it out: glmforge says itself where TF32 is used",
    ),
    Harm(
        "NCCL_SOCKET_IFNAME", "lo", _is_loopback, "error",
        "no other node is reached over the loopback", "the interface between the nodes, or leave it out",
    ),
    Harm(
        "GLOO_SOCKET_IFNAME", "lo", _is_loopback, "error",
        "no other node is reached over the loopback", "the interface between the nodes",
    ),
    Harm(
        "TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", lambda value: value == "0", "error",
        "a collective that fails hangs for ever", "leave it out: 3, which ends the process",
    ),
    Harm(
        "CUDA_LAUNCH_BLOCKING", "1", _is_on, "warning",
        "each kernel is waited for: many times slower", "leave it out",
    ),
    Harm(
        "NCCL_DEBUG", "TRACE", lambda value: value.upper() == "TRACE", "warning",
        "writes gigabytes", "WARN, or INFO once",
    ),
    Harm(
        "NCCL_P2P_DISABLE", "1", _is_on, "warning",
        "GPUs of a node talk through its memory, several times slower", "leave it out, and mend what it works around",
    ),
    Harm(
        "NCCL_SHM_DISABLE", "1", _is_on, "warning",
        "processes of a node talk over the network", "leave it out; a larger /dev/shm, if that is why",
    ),
    Harm(
        "NCCL_NET_GDR_LEVEL", "LOC", lambda value: value.upper() in ("LOC", "0"), "warning",
        "GPUs reach the network only through the node's memory", "leave it out",
    ),
    Harm("NCCL_CHECK_POINTERS", "1", _is_on, "warning", "checks every call", "leave it out"),
    Harm(
        "NCCL_LAUNCH_MODE", "GROUP", lambda value: value.upper() == "GROUP", "warning",
        "deprecated since 2.9", "leave it out",
    ),
    Harm(
        "TORCH_NCCL_BLOCKING_WAIT", "1", _is_on, "warning",
        "each wait for a collective blocks the process: nothing overlaps", "leave it out",
    ),
    Harm(
        "TORCH_NCCL_ENABLE_MONITORING", "0", lambda value: value == "0", "warning",
        "a process whose NCCL threads hang is never ended", "leave it out",
    ),
    Harm(
        "TORCH_DISTRIBUTED_DEBUG", "DETAIL", lambda value: value.upper() == "DETAIL", "warning",
        "a second collective checks each one", "leave it out, or OFF",
    ),
    Harm(
        "PYTORCH_NO_CUDA_MEMORY_CACHING", "1", _is_on, "warning",
        "every tensor is a call of cudaMalloc: many times slower", "leave it out",
    ),
    Harm(
        "CUDA_DEVICE_MAX_CONNECTIONS", "1", lambda value: value == "1", "warning",
        "one queue to the GPU: copies and collectives of FSDP wait for kernels; Megatron alone asks for it",
        "leave it out: 8",
    ),
    Harm(
        "KMP_DUPLICATE_LIB_OK", "TRUE", _is_on, "warning",
        "hides that two OpenMP libraries are loaded, which may compute wrong results", "install one of the two",
    ),
)  # fmt: skip


def facts_markdown() -> str:
    """The linter's table of `docs/cluster-env.md`."""
    lines = ["| the linter says | of | why | instead |", "|---|---|---|---|"]
    lines += [f"| error: unread | {name} | no program reads it | {instead} |" for name, instead in UNREAD.items()]
    lines += [f"| error: gone | {name} | no longer read | {instead} |" for name, instead in GONE.items()]
    lines += [f"| warning: renamed | {old} | its old name, still read | {new} |" for old, new in RENAMED.items()]
    lines += [
        f"| {harm.severity}: harmful | {harm.name}={harm.example} | {harm.says} | {harm.instead} |" for harm in HARMFUL
    ]
    return "\n".join(lines) + "\n"
