"""One optimizer step of a 20-million-parameter GLM-shaped model, against torch's own Muon.

    python benchmarks/optimizer.py               # under a minute; writes benchmarks/results/optimizer.json

Both sides train the model of `benchmarks/train_step.py` from random gradients: Muon for every matrix but
the embedding, fused AdamW for the rest, the same settings. `torch.optim.Muon` takes 2-D parameters only, so
that it is given each expert's gate, up and down matrix as a parameter of its own. The variants take turns,
one step each, so that whatever else the machine does falls on all of them alike; `cpu_ms` is the median
processor time over all threads, which other work disturbs less than the time on the clock.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable

import torch
from record import write_result
from torch.nn import Parameter
from train_step import CONFIG as MODEL

from glmforge.config.optim import OptimConfig
from glmforge.config.parameter_groups import parameter_groups
from glmforge.config.parameters import parameter_table
from glmforge.model import GlmMoe
from glmforge.optim.optimizer import build_optimizer

CONFIG = OptimConfig()
NUM_WARMUP = 2


def named_parameters() -> dict[str, Parameter]:
    model = GlmMoe.create(MODEL)
    parameters = dict(model.named_parameters())
    for parameter in parameters.values():
        parameter.grad = torch.randn(parameter.shape)
    return parameters


def ours(dtype: torch.dtype) -> Callable[[], None]:
    return build_optimizer(named_parameters().items(), parameter_table(MODEL), CONFIG, compute_dtype=dtype).step


def torchs() -> Callable[[], None]:
    matrices, groups, parameters = [], [], named_parameters()
    for group in parameter_groups(parameter_table(MODEL), CONFIG):
        if group.optimizer.name == "muon":
            for row in group.parameters:
                matrices += _separate(parameters[row.name], row.num_fused)
        else:
            own = [parameters[row.name] for row in group.parameters]
            groups.append({"params": own, "weight_decay": group.weight_decay})
    muon = torch.optim.Muon(matrices, lr=CONFIG.lr, weight_decay=CONFIG.weight_decay, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW(groups, lr=CONFIG.lr, betas=CONFIG.betas, eps=CONFIG.eps, fused=True)

    def step() -> None:
        muon.step()
        adamw.step()

    return step


def _separate(packed: Parameter, num_fused: int) -> list[Parameter]:
    """The 2-D matrices of a parameter, each as a parameter with its gradient."""
    shape = (-1, packed.shape[-2] // num_fused, packed.shape[-1])
    matrices = [Parameter(matrix) for matrix in packed.detach().view(shape)]
    for matrix, gradient in zip(matrices, packed.grad.view(shape), strict=True):
        matrix.grad = gradient
    return matrices


def measure(steps: dict[str, Callable[[], None]], rounds: int) -> dict[str, dict[str, float]]:
    wall: dict[str, list[float]] = {name: [] for name in steps}
    processor: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(NUM_WARMUP + rounds):
        for name, step in steps.items():
            start, processor_start = time.perf_counter(), time.process_time()
            step()
            wall[name].append(1e3 * (time.perf_counter() - start))
            processor[name].append(1e3 * (time.process_time() - processor_start))
    return {
        name: {
            "median_ms": round(statistics.median(wall[name][NUM_WARMUP:]), 1),
            "min_ms": round(min(wall[name][NUM_WARMUP:]), 1),
            "cpu_ms": round(statistics.median(processor[name][NUM_WARMUP:]), 1),
        }
        for name in steps
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    steps = {
        "glmforge, bf16 iteration": ours(torch.bfloat16),
        "glmforge, fp32 iteration": ours(torch.float32),
        "torch.optim.Muon + AdamW (bf16 iteration)": torchs(),
    }
    result = {
        "num_parameters": sum(parameter.numel() for parameter in named_parameters().values()),
        "step": measure(steps, arguments.rounds),
        "threads": arguments.threads,
    }
    print(write_result("optimizer", result, code=["src/glmforge/optim"]).read_text())


if __name__ == "__main__":
    main()
