"""Megatron-LM's own pretrain_gpt.py on a CPU: `MEGATRON=tests/backends/megatron` for the scripts of examples/slurm.

MEGATRON_SOURCE is a checkout of Megatron-LM core_v0.16.1; its `megatron.core` is the installed one, which has its C++
helpers. Megatron asks for CUDA before it reads its arguments ("Megatron requires CUDA."): what it then calls of
`torch.cuda` is replaced here by the same on the CPU, or by nothing. What exists for GPUs only stays out of reach:
Transformer Engine, fused kernels, grouped matmuls, and with them sequence parallelism ("not supported by torch
LayerNorm"); `CPU_ARGUMENTS` turn them off. With --plain nothing is replaced.
"""

import os
import runpy
import sys
import types
from collections import defaultdict
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

CPU_ARGUMENTS = (
    *("--transformer-impl", "local", "--distributed-backend", "gloo", "--tensor-model-parallel-size", "1"),
    *("--no-gradient-accumulation-fusion", "--no-persist-layer-norm", "--no-rope-fusion", "--no-masked-softmax-fusion"),
)


class Stream(nullcontext[None]):
    """Of a device that has done everything at once; an event too."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__()

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self


def on_cpu(make: Any) -> Any:
    """A function that makes tensors, on the CPU where it is asked for CUDA."""

    def there(value: Any) -> Any:
        return "cpu" if isinstance(value, str | torch.device) and str(value).startswith("cuda") else value

    def made(*arguments: Any, **options: Any) -> Any:
        return make(*map(there, arguments), **{name: there(value) for name, value in options.items()})

    return made


def replace_cuda() -> None:
    cuda, properties = torch.cuda, types.SimpleNamespace(major=9, minor=0, total_memory=1 << 36, name="cpu")
    answers: dict[str, Any] = {
        **dict.fromkeys(("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"), 0),
        **dict.fromkeys(("set_device", "set_stream", "synchronize", "empty_cache", "manual_seed", "manual_seed_all")),
        **{"is_available": True, "device_count": 2, "current_device": torch.device("cpu"), "memory_stats": {}},
        **{"get_device_capability": (9, 0), "get_device_properties": properties, "is_current_stream_capturing": False},
    }
    for name, answer in answers.items():
        setattr(cuda, name, lambda *arguments, answer=answer: answer)
    cuda.Stream = cuda.Event = cuda.stream = cuda.current_stream = cuda.default_stream = Stream
    cuda.random.get_rng_state = cuda.get_rng_state = lambda *arguments, **options: torch.get_rng_state()
    cuda.random.set_rng_state = cuda.set_rng_state = lambda state, *arguments, **options: torch.set_rng_state(state)
    cuda.default_generators = defaultdict(lambda: torch.default_generator)
    cuda._lazy_call = lambda function: function()
    for kind in ("Float", "Long", "Int", "Byte", "BFloat16"):
        setattr(cuda, f"{kind}Tensor", getattr(torch, f"{kind}Tensor"))
    torch.Tensor.cuda = torch.nn.Module.cuda = lambda self, *arguments, **options: self
    names = (
        *("empty", "zeros", "ones", "tensor", "full", "rand", "arange", "as_tensor"),
        "empty_like",
        "zeros_like",
        "ones_like",
    )
    for name in names:
        setattr(torch, name, on_cpu(getattr(torch, name)))
    torch.Tensor.to = on_cpu(torch.Tensor.to)
    plain = torch.Tensor.type  # clipping asserts that gradients are torch.cuda.FloatTensor
    torch.Tensor.type = lambda self, *given: (
        plain(self, *given) if given else plain(self).replace("torch.", "torch.cuda.")
    )


def replace_megatrons_own() -> None:
    from megatron.core.datasets import utils as datasets
    from megatron.core.transformer.moe import moe_utils
    from megatron.legacy import fused_kernels

    datasets.compile_helpers = lambda: None  # they come compiled
    fused_kernels.load = lambda arguments: None
    moe_utils.te_general_gemm = None  # 0.16.1 names it without Transformer Engine, too


if __name__ == "__main__":
    import megatron.core

    source = Path(os.environ["MEGATRON_SOURCE"])
    megatron.core.__path__  # noqa: B018  the installed one, before the checkout's could be found
    megatron.__path__.append(str(source / "megatron"))
    sys.path.insert(1, str(source))
    if "--plain" in sys.argv:
        sys.argv.remove("--plain")
    else:
        replace_cuda()
        replace_megatrons_own()
        sys.argv = [word for word in sys.argv if word != "--moe-grouped-gemm"] + list(CPU_ARGUMENTS)
    sys.argv[0] = str(source / "pretrain_gpt.py")
    runpy.run_path(sys.argv[0], run_name="__main__")
