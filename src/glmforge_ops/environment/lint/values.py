"""Values that variables take: what is no number, no flag, or no word that the program knows.

Programs mostly take such a value for the default and say nothing. The ranges are those of the pages that the table
names.
"""

import re
from collections.abc import Callable

Check = Callable[[str], str | None]
"""From a value to what is expected instead; None if the value is right."""

_ALLOCATOR_KEYS = """
    backend expandable_segments garbage_collection_threshold graph_capture_record_stream_reuse large_segment_size_mb
    max_non_split_rounding_mb max_split_size_mb per_process_memory_fraction pinned_free_catch_all
    pinned_max_cached_size_mb pinned_max_round_threshold_mb pinned_num_register_threads pinned_reserve_segment_size_mb
    pinned_use_background_threads pinned_use_cuda_host_register pinned_use_hip_host_register
    release_lock_on_cudamalloc release_lock_on_hipmalloc roundup_power2_divisions throw_on_cudamalloc_oom
"""
"""Those of PyTorch 2.11 to 2.13; another one is an error when torch is imported."""
_LEVELS = ("LOC", "NVL", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")


def _whole(low: int, high: int | None = None) -> Check:
    def check(value: str) -> str | None:
        if re.fullmatch(r"[+-]?[0-9]{1,18}", value) and low <= int(value) and (high is None or int(value) <= high):
            return None
        return f"a whole number from {low} to {high}" if high is not None else f"a whole number, at least {low}"

    return check


def _one_of(*words: str, or_number: bool = False) -> Check:
    def check(value: str) -> str | None:
        if value.lower() in {word.lower() for word in words} or (or_number and value.isdecimal()):
            return None
        return "one of " + ", ".join(words)

    return check


def _matching(pattern: str, words: str) -> Check:
    compiled = re.compile(pattern)
    return lambda value: None if compiled.fullmatch(value) else words


def _allocator(value: str) -> str | None:
    flat = re.sub(r"\[[^\]]*\]", "0", value)
    for part in flat.split(","):
        key, colon, setting = part.strip().partition(":")
        if not colon or not setting:
            return "key:value pairs with commas between them"
        if key not in _ALLOCATOR_KEYS.split():
            return "keys of PyTorch's allocator: " + ", ".join(_ALLOCATOR_KEYS.split()[:7]) + ", ..."
        if key == "expandable_segments" and setting not in ("True", "False"):
            return "expandable_segments:True or expandable_segments:False, with this capital"
    return None


_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}"
_FLAG = _whole(0, 1)
_FLAGS = """
    NCCL_IB_DISABLE NCCL_P2P_DISABLE NCCL_P2P_DIRECT_DISABLE NCCL_SHM_DISABLE NCCL_CUMEM_ENABLE NCCL_CUMEM_HOST_ENABLE
    NCCL_DMABUF_ENABLE NCCL_COLLNET_ENABLE NCCL_IGNORE_CPU_AFFINITY NCCL_PXN_DISABLE NCCL_CHECK_POINTERS
    NCCL_IB_MERGE_NICS NCCL_RAS_ENABLE NCCL_NET_GDR_READ NVIDIA_TF32_OVERRIDE TORCH_NCCL_BLOCKING_WAIT
    TORCH_NCCL_DUMP_ON_TIMEOUT TORCH_NCCL_DESYNC_DEBUG TORCH_NCCL_ENABLE_MONITORING TORCH_NCCL_ENABLE_TIMING
    TORCH_NCCL_HIGH_PRIORITY TORCH_NCCL_NAN_CHECK CUDA_LAUNCH_BLOCKING
"""
CHECKS: dict[str, Check] = {
    **dict.fromkeys(_FLAGS.split(), _FLAG),
    "NCCL_SOCKET_IFNAME": _matching(rf"\^?=?{_NAME}(,{_NAME})*", "names or prefixes with commas; ^ or = only in front"),
    "GLOO_SOCKET_IFNAME": _matching(rf"{_NAME}(,{_NAME})*", "names of interfaces, without NCCL's ^ and ="),
    "NCCL_SOCKET_FAMILY": _one_of("AF_INET", "AF_INET6"),
    "NCCL_IB_ADDR_FAMILY": _one_of("AF_INET", "AF_INET6"),
    "NCCL_IB_HCA": _matching(r"\^?=?[\w.-]+(:\d*)*(,[\w.-]+(:\d*)*)*", "devices with commas; ^ or = only in front"),
    "NCCL_IB_TIMEOUT": _whole(0, 31),
    "NCCL_IB_RETRY_CNT": _whole(0, 7),
    "NCCL_IB_GID_INDEX": _whole(-1, 255),
    "NCCL_IB_ROCE_VERSION_NUM": _whole(1, 2),
    "NCCL_IB_TC": _whole(-1, 255),
    "NCCL_IB_SL": _whole(-1, 15),
    "NCCL_IB_QPS_PER_CONNECTION": _whole(1, 128),
    "NCCL_IB_PCI_RELAXED_ORDERING": _whole(0, 2),
    "NCCL_IB_ADAPTIVE_ROUTING": _whole(0, 1),
    "NCCL_SOCKET_NTHREADS": _whole(1, 16),
    "NCCL_NSOCKS_PERTHREAD": _whole(1, 64),
    "NCCL_CROSS_NIC": _whole(0, 2),
    "NCCL_NVLS_ENABLE": _whole(0, 2),
    "NCCL_MNNVL_ENABLE": _whole(0, 2),
    "NCCL_BUFFSIZE": _whole(1),
    "NCCL_NTHREADS": _one_of("64", "128", "256", "512"),
    "NCCL_MIN_CTAS": _whole(1),
    "NCCL_MAX_CTAS": _whole(1),
    "NCCL_MIN_NCHANNELS": _whole(1),
    "NCCL_MAX_NCHANNELS": _whole(1),
    "NCCL_DEBUG": _one_of("NONE", "VERSION", "WARN", "INFO", "ABORT", "TRACE"),
    "NCCL_P2P_LEVEL": _one_of(*_LEVELS, or_number=True),
    "NCCL_NET_GDR_LEVEL": _one_of(*_LEVELS, or_number=True),
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": _whole(0, 3),
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": _whole(1),
    "TORCH_FR_BUFFER_SIZE": _whole(0),
    "TORCH_DISTRIBUTED_DEBUG": _one_of("OFF", "INFO", "DETAIL"),
    "TORCH_CPP_LOG_LEVEL": _one_of("INFO", "WARNING", "ERROR", "FATAL", or_number=True),
    "PYTORCH_ALLOC_CONF": _allocator,
    "PYTORCH_CUDA_ALLOC_CONF": _allocator,
    "CUDA_DEVICE_MAX_CONNECTIONS": _whole(1, 32),
    "CUDA_DEVICE_ORDER": _one_of("FASTEST_FIRST", "PCI_BUS_ID"),
    "CUDA_MODULE_LOADING": _one_of("DEFAULT", "LAZY", "EAGER"),
    "CUBLAS_WORKSPACE_CONFIG": _matching(r"(:[0-9]+:[0-9]+)+", "pairs :SIZE:COUNT, e.g. :4096:8"),
    "OMP_NUM_THREADS": _matching(r"[1-9][0-9]*(,[1-9][0-9]*)*", "a whole number, at least 1"),
    "OMP_PROC_BIND": _one_of("true", "false", "primary", "master", "close", "spread"),
    "OMP_WAIT_POLICY": _one_of("active", "passive"),
    "MKL_NUM_THREADS": _whole(1),
    "GOMP_SPINCOUNT": _matching(r"(?i:[0-9]+[kmgt]?|infinite|infinity)", "a count, e.g. 1000 or 3M, or INFINITE"),
    "KMP_BLOCKTIME": _matching(r"(?i:[0-9]+(us|ms)?|infinite)", "milliseconds, or infinite"),
    "MASTER_PORT": _whole(1, 65535),
    "TOKENIZERS_PARALLELISM": _one_of("true", "false", "on", "off", "yes", "no", "1", "0"),
}


def expected_instead(name: str, value: str) -> str | None:
    """What `name` takes, if that is not `value`; an empty value is mostly the same as none and always right."""
    check = CHECKS.get(name)
    return check(value.strip()) if check is not None and value.strip() else None
