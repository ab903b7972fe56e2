"""Every Triton kernel is compiled for an H100, down to machine code, as its launch at a model's sizes asks for.

That needs no GPU, but must happen where Triton does not interpret: this file is its own second program, which prints
what each launch was compiled to.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

T = 3
"""Tokens: kernels are compiled for the other sizes."""


def norms() -> None:
    from glmforge.kernels.triton import rms_norm

    for hidden_size in (4096, 5120):
        x, weight = torch.ones(T, hidden_size, dtype=torch.bfloat16), torch.ones(hidden_size)
        rms_norm.rms_norm(x, weight, 1e-5)
        rms_norm.add_rms_norm(x, x, weight, 1e-5)
        rms_norm.rms_norm_backward(x, weight, x, None, 1e-5)
        rms_norm.rms_norm_backward(x, weight, x, x, 1e-5)


def queries_and_keys() -> None:
    from glmforge.kernels.triton import qk_rope

    x, angles = torch.ones(T, 96, 128, dtype=torch.bfloat16), torch.ones(T, 1, 64, dtype=torch.bfloat16)
    for weight in (None, torch.ones(128)):
        qk_rope.norm_rope(x, angles, angles, weight, 1e-5)
        qk_rope.norm_rope_backward(x.transpose(0, 1).contiguous().transpose(0, 1), x, angles, angles, weight, 1e-5)


def logits() -> None:
    from glmforge.kernels.triton import cross_entropy

    labels, ones = torch.zeros(T, dtype=torch.int64), torch.ones(T)
    for first, num_logits in ((0, 151_552), (75_776, 75_776)):  # a whole vocabulary, and the second half
        logits = torch.zeros(T, num_logits, dtype=torch.bfloat16)
        cross_entropy.logit_statistics(logits, labels, first)
        cross_entropy.logits_to_gradient_(logits, labels, first, ones, ones)


def symmetric_products() -> None:
    from glmforge.kernels.triton import symmetric_matmul

    launch = symmetric_matmul.launch  # what the operation does for a GPU
    x, gram = torch.ones(1, 1408, 4096, dtype=torch.bfloat16), torch.ones(1, 1408, 1408, dtype=torch.bfloat16)
    launch(x, None, 1.0, 0.0)
    launch(gram, gram, 2.0, -4.0)
    launch(torch.ones(1, 4096, 1408, dtype=torch.bfloat16).mT, None, 1.0, 0.0)


def routes() -> None:
    from glmforge.kernels.triton import router

    for num_experts, num_groups, num_kept_groups in ((128, 1, 1), (160, 1, 1), (160, 8, 4)):
        logits, bias, experts = (
            torch.randn(T, num_experts),
            torch.ones(num_experts),
            torch.zeros(T, 8, dtype=torch.int64),
        )
        for choice in (None, logits):  # Sinkhorn's choice
            router.route(logits, bias, choice, 8, num_groups, num_kept_groups, True, 2.5)
        router.route_backward(torch.ones(T, 8), experts, torch.ones(T, 8), num_experts, True, 2.5)


def orders() -> None:
    from glmforge.kernels.triton import permute

    slots, x = torch.zeros(8 * T, dtype=torch.int64), torch.ones(T, 4096, dtype=torch.bfloat16)
    rows, weights = torch.ones(8 * T, 4096, dtype=torch.bfloat16), torch.ones(T, 8)
    permute.sort_slots(slots, 128, 8)
    permute.copy_rows(x, slots, 8, 8 * T)
    for each in (None, weights):
        permute.sum_rows(rows, each, slots, 8)
    permute.sum_rows_backward(x, rows, weights, slots)


def swiglus() -> None:
    from glmforge.kernels.triton import swiglu

    gate_up, grad = torch.ones(T, 2 * 1408, dtype=torch.bfloat16), torch.ones(T, 1408, dtype=torch.bfloat16)
    for weights in (None, torch.ones(T)):
        swiglu.swiglu(gate_up, weights)
        swiglu.swiglu_backward(gate_up, weights, grad)


LAUNCHES: dict[str, Callable[[], None]] = {
    "rms_norm": norms,
    "qk_rope": queries_and_keys,
    "cross_entropy": logits,
    "symmetric_matmul": symmetric_products,
    "router": routes,
    "permute": orders,
    "swiglu": swiglus,
}


def compile_for_h100() -> dict[str, list[dict[str, Any]]]:
    """Do as if all launches went to an H100, but only compile them."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.runtime.jit import JITFunction

    class H100:
        get_current_device = staticmethod(lambda: 0)
        get_current_stream = staticmethod(lambda device: 0)
        get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))

    triton.runtime.driver.set_active(H100())
    compiled: list[dict[str, Any]] = []
    run = JITFunction.run

    def compile_only(kernel: Any, *args: Any, warmup: bool, **options: Any) -> None:
        result = run(kernel, *args, warmup=True, **options)
        compiled.append({"kernel": kernel.__name__, "wgmma": "wgmma" in result.asm["ptx"]} | resources(result))

    JITFunction.run = compile_only
    results = {}
    for name, launch in LAUNCHES.items():
        launch()
        results[name], compiled = compiled, []
    return results


def resources(kernel: Any) -> dict[str, int]:
    """Registers of a thread, bytes that it keeps in memory for want of them, and shared memory."""
    import triton.backends.nvidia

    cuobjdump = Path(triton.backends.nvidia.__file__).parent / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        dump = subprocess.run(
            [cuobjdump, "--dump-resource-usage", file.name], capture_output=True, check=True, text=True
        )
    stack = re.search(r"STACK:(\d+)", dump.stdout)
    registers = re.search(r"REG:(\d+)", dump.stdout)
    assert stack is not None
    assert registers is not None
    return {"registers": int(registers[1]), "stack": int(stack[1]), "shared": kernel.metadata.shared}


@pytest.fixture(scope="module")
def compiled() -> dict[str, list[dict[str, Any]]]:
    pytest.importorskip("triton")
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    result = subprocess.run([sys.executable, __file__], capture_output=True, env=environment, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("name", LAUNCHES)
def test_compiles_without_spilling(name: str, compiled: dict[str, list[dict[str, Any]]]) -> None:
    assert compiled[name]
    for kernel in compiled[name]:
        assert kernel["stack"] == 0, kernel
        assert kernel["shared"] <= 227 * 1024, kernel  # of a thread block on an H100


def test_products_use_the_tensor_cores_of_hopper(compiled: dict[str, list[dict[str, Any]]]) -> None:
    assert all(kernel["wgmma"] for kernel in compiled["symmetric_matmul"])


if __name__ == "__main__":
    print(json.dumps(compile_for_h100()))
