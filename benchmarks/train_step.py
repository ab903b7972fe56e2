"""A whole training step against transformers, on this machine.

    python benchmarks/train_step.py                             # every variant, fp32 and bf16, about 15 minutes
    python benchmarks/train_step.py --rounds 3 --dtypes fp32

Both sides train the same GLM-shaped model of about 23 million parameters (MTP off) from the same initial weights on the
same unpadded batches: forward, backward, gradient clipping, fused AdamW, with the same allocator setting
(`glmforge.kernels.allocator`). Every variant lives in a process of its own and the processes take turns (`harness`).

In fp32 the first losses must agree to 1e-5 or the run fails. In bf16 the precisions differ by design: glmforge keeps
fp32 master weights and fp32 optimizer state and computes in bf16; transformers, in its fastest bf16 form, holds weights
and optimizer state in bf16.

`fraction_of_peak` = model FLOPs of a step (every matmul once forward and twice backward, attention counted causal) over
its median time, over the best rate that a large square matmul reached in the same dtype with the same threads.
"""

import argparse
import itertools
import json
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from harness import Worker, arguments, paired_ratio, serve, step_figures, take_turns
from record import write_result
from torch import Tensor, nn

from glmforge.config.model import ModelConfig
from glmforge.kernels.allocator import keep_large_blocks
from glmforge.kernels.documents import Documents
from glmforge.model.inputs import ModelInputs
from glmforge.model.loss import CrossEntropyHead
from glmforge.model.transformer import GlmMoe
from glmforge.parallel.compile import compile_parts

CODE = ("src/glmforge/model", "src/glmforge/kernels", "src/glmforge/config/model.py")
BATCH_SIZE, SEQ_LEN, NUM_BATCHES = 8, 256, 16
PEAK_SIZE = 4096
CONFIG = ModelConfig(
    vocab_size=8192,
    hidden_size=256,
    num_hidden_layers=6,
    first_k_dense_replace=1,
    intermediate_size=768,
    moe_intermediate_size=128,
    num_attention_heads=8,
    num_key_value_heads=2,
    head_dim=64,
    use_qk_norm=True,
    rope_theta=1e6,
    max_position_embeddings=4096,
    n_routed_experts=32,
    n_shared_experts=1,
    num_experts_per_tok=4,
    routed_scaling_factor=2.5,
    num_nextn_predict_layers=0,
    eos_token_id=[1, 2, 3],
    pad_token_id=1,
)
PEAK = "matmul peak"
GLMFORGE = {"glmforge": False, "glmforge compiled": True}
TRANSFORMERS = {
    "transformers eager": ("eager", False),
    "transformers grouped_mm": ("grouped_mm", False),
    "transformers eager compiled": ("eager", True),
    "transformers grouped_mm compiled": ("grouped_mm", True),
}

LossOf = Callable[[Tensor], Tensor]


def main() -> None:
    args = parse_arguments()
    if args.worker:
        work(args.worker, args.dtypes[0], args.weights, args.threads)
        return
    batch = [BATCH_SIZE, SEQ_LEN]
    result: dict[str, Any] = {"threads": args.threads, "model": CONFIG.model_dump(mode="json"), "batch": batch}
    for dtype in args.dtypes:
        result[dtype] = compare(dtype, args)
        print(json.dumps(result[dtype], indent=2), flush=True)
    write_result("train_step", result, code=CODE, libraries=("transformers",), out=args.out)


def parse_arguments() -> argparse.Namespace:
    parser = arguments(__doc__, rounds=12, threads=True)
    parser.add_argument("--dtypes", nargs="+", choices=("fp32", "bf16"), default=["fp32", "bf16"])
    parser.add_argument("--variants", nargs="+", choices=(*GLMFORGE, *TRANSFORMERS), default=[*GLMFORGE, *TRANSFORMERS])
    parser.add_argument("--steps", type=int, default=4, help="steps in one turn")
    parser.add_argument("--warmup", type=int, default=8, help="untimed first steps; compilation falls into them")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--weights", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def compare(dtype: str, args: argparse.Namespace) -> dict[str, Any]:
    """All variants in one dtype, taking turns."""
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "weights.pt"
        torch.save(build_transformers("fp32", "eager", compiled=False)[0].state_dict(), weights)
        given = [__file__, "--dtypes", dtype, "--weights", str(weights), "--threads", str(args.threads), "--worker"]
        workers = {name: Worker(name, [*given, name], args.threads) for name in (*args.variants, PEAK)}
        for name, worker in workers.items():
            worker.run(0 if name == PEAK else args.warmup)
        take_turns({worker: 1 if name == PEAK else args.steps for name, worker in workers.items()}, args.rounds)
        for worker in workers.values():
            worker.close()
    return summarize(dtype, workers, args)


def summarize(dtype: str, workers: dict[str, Worker], args: argparse.Namespace) -> dict[str, Any]:
    peak = 2 * PEAK_SIZE**3 / min(workers.pop(PEAK).seconds)
    medians = {name: statistics.median(worker.seconds) for name, worker in workers.items()}
    summary: dict[str, Any] = {
        "rounds": args.rounds,
        "steps_per_turn": args.steps,
        "matmul_peak_gflops": round(peak / 1e9, 1),
        "model_gflop_per_step": round(model_flops() / 1e9, 1),
        "variants": {
            name: {"fraction_of_peak": round(model_flops() / medians[name] / peak, 3)}
            | step_figures(worker, BATCH_SIZE * SEQ_LEN, 3)
            for name, worker in workers.items()
        },
    }
    ours, theirs = ([name for name in workers if name in family] for family in (GLMFORGE, TRANSFORMERS))
    if ours and theirs:
        best_ours, best_theirs = min(ours, key=medians.__getitem__), min(theirs, key=medians.__getitem__)
        summary["speedup"] = paired_ratio(workers[best_theirs], workers[best_ours])
        summary["loss_difference"] = abs(workers[best_ours].losses[0] - workers[best_theirs].losses[0])
        if dtype == "fp32" and summary["loss_difference"] > 1e-5:
            raise RuntimeError(f"the first fp32 losses differ by {summary['loss_difference']:.1e}: not the same model")
    return summary


def model_flops() -> float:
    c = CONFIG
    attention = c.hidden_size * c.head_dim * 2 * (c.num_attention_heads + c.num_key_value_heads)
    expert = 3 * c.hidden_size * c.moe_intermediate_size
    moe = c.hidden_size * c.n_routed_experts + (c.num_experts_per_tok + c.n_shared_experts) * expert
    dense = 3 * c.hidden_size * c.intermediate_size
    matmul_parameters = (
        c.num_hidden_layers * attention
        + c.num_moe_layers * moe
        + c.first_k_dense_replace * dense
        + c.vocab_size * c.hidden_size
    )
    scores = SEQ_LEN * c.num_attention_heads * c.head_dim * c.num_hidden_layers
    return 6.0 * BATCH_SIZE * SEQ_LEN * (matmul_parameters + scores)


def work(name: str, dtype: str, weights: Path, threads: int) -> None:
    """The process of one variant."""
    torch.set_num_threads(threads)
    keep_large_blocks()
    serve(matmul_step(dtype) if name == PEAK else training_step(name, dtype, weights))


def matmul_step(dtype: str) -> Callable[[], float]:
    a = torch.randn(PEAK_SIZE, PEAK_SIZE, dtype=torch_dtype(dtype))
    return lambda: (a @ a)[0, 0].item()


def training_step(name: str, dtype: str, weights: Path) -> Callable[[], float]:
    if name in GLMFORGE:
        model, loss_of = build_glmforge(dtype, compiled=GLMFORGE[name])
    else:
        experts, compiled = TRANSFORMERS[name]
        model, loss_of = build_transformers(dtype, experts, compiled)
    model.load_state_dict(torch.load(weights))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    generator = torch.Generator().manual_seed(0)
    shape = (NUM_BATCHES, BATCH_SIZE, SEQ_LEN)
    batches = itertools.cycle(torch.randint(0, CONFIG.vocab_size, shape, generator=generator))

    def step() -> float:
        loss = loss_of(next(batches))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


def build_glmforge(dtype: str, compiled: bool) -> tuple[nn.Module, LossOf]:
    """fp32 weights; `dtype` is what it computes in."""
    model = GlmMoe(CONFIG)
    model.compute_dtype = torch_dtype(dtype)
    documents = Documents.from_lengths([SEQ_LEN] * BATCH_SIZE)
    if compiled:
        compile_parts(model)

    def loss_of(ids_BS: Tensor) -> Tensor:
        labels_BS = nn.functional.pad(ids_BS[:, 1:], (0, 1), value=-100)
        head = CrossEntropyHead.whole(labels_BS, documents)
        return model(ModelInputs.whole(ids_BS, documents), head=head).main.sum / (labels_BS >= 0).sum()

    return model, loss_of


def build_transformers(dtype: str, experts: str, compiled: bool) -> tuple[nn.Module, LossOf]:
    model = transformers_model(CONFIG, dtype, experts)
    forward = torch.compile(model) if compiled else model
    return model, lambda ids_BS: forward(input_ids=ids_BS, labels=ids_BS, use_cache=False).loss


def transformers_model(model: ModelConfig, dtype: str, experts: str) -> nn.Module:
    """Parameters in `dtype`, buffers (router bias, rotary frequencies) in fp32 as its own loader keeps them."""
    from transformers import Glm4MoeConfig, Glm4MoeForCausalLM

    fields = model.model_dump(exclude={"rope_theta", "partial_rotary_factor", "num_nextn_predict_layers"})
    rope = {
        "rope_type": "default",
        "rope_theta": model.rope_theta,
        "partial_rotary_factor": model.partial_rotary_factor,
    }
    config = Glm4MoeConfig(**fields, rope_parameters=rope, num_mtp_layers=0)
    config._attn_implementation = "sdpa"
    config._experts_implementation = experts
    built = Glm4MoeForCausalLM(config).train()
    for parameter in built.parameters():
        parameter.data = parameter.data.to(torch_dtype(dtype))
    return built


def torch_dtype(dtype: str) -> torch.dtype:
    return {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]


if __name__ == "__main__":
    main()
