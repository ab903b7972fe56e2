"""The planner against published throughputs on H100 and H200: predicted, published, and the error of each.

    python benchmarks/plan_published.py

Every row is a run that others have published: balanced routing, mock data. Rates are compared in tokens where they were
published, because FLOPs are counted in more than one way.

Nothing of the model is fitted to these rows. To see whether fitting would help, each row is also predicted with the
factor by which the others are off, their geometric mean (leave one out).

Models that are no GLM are expressed as nearly as its configuration allows, and layouts that were not published are
guessed; `expressed` says how.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

from record import write_result

from glmforge.config import load_config
from glmforge.config.layout import resolve_layout
from glmforge.config.lora import parse_lora
from glmforge.plan.machine.machine import find_machine
from glmforge.plan.stages.stage import find_stage
from glmforge.plan.time.pieces import Kernels
from glmforge.plan.time.step_time import StepTime, predict_step

AUTOMODEL = "NeMo AutoModel, performance summary (DGX H100, bf16, October 2025 and 26.02)"
_RUN = """
name: published
data: {{tokenizer: none, sources: [{{name: random, path: none}}]}}
optim: {{matrix_optimizer: adamw, grad_clip: null}}
phases: [{{name: main, steps: 1, seq_len: {seq_len}, batch_size: {batch_size}, mtp_loss_weight: {mtp}}}]
parallel: {{{parallel}}}
precision: {{low_precision: {low_precision}}}
model: {model}
"""
_COMMON = "rope_theta: 1e6, max_position_embeddings: 131072, routed_scaling_factor: 1.0, attention_bias: false"
_QWEN3_30B = (
    f"{_COMMON}, vocab_size: 151936, hidden_size: 2048, num_hidden_layers: 48, first_k_dense_replace: 0, "
    "intermediate_size: 6144, moe_intermediate_size: 768, num_attention_heads: 32, num_key_value_heads: 4, "
    "head_dim: 128, use_qk_norm: true, n_routed_experts: 128, n_shared_experts: 1, num_experts_per_tok: 7, "
    "num_nextn_predict_layers: 0"
)
_QWEN3_235B = (
    f"{_COMMON}, vocab_size: 151936, hidden_size: 4096, num_hidden_layers: 94, first_k_dense_replace: 0, "
    "intermediate_size: 12288, moe_intermediate_size: 1536, num_attention_heads: 64, num_key_value_heads: 4, "
    "head_dim: 128, use_qk_norm: true, n_routed_experts: 128, n_shared_experts: 1, num_experts_per_tok: 7, "
    "num_nextn_predict_layers: 0"
)
_DEEPSEEK_V3 = (
    f"{_COMMON}, pad_token_id: null, eos_token_id: [1], "
    "vocab_size: 129280, hidden_size: 7168, num_hidden_layers: 61, first_k_dense_replace: 3, "
    "intermediate_size: 18432, moe_intermediate_size: 2048, num_attention_heads: 110, num_key_value_heads: 5, "
    "head_dim: 128, use_qk_norm: false, n_routed_experts: 256, n_shared_experts: 1, num_experts_per_tok: 8, "
    "num_nextn_predict_layers: 0"
)
_KIMI_K2 = (
    f"{_COMMON}, vocab_size: 163840, hidden_size: 7168, num_hidden_layers: 61, first_k_dense_replace: 1, "
    "intermediate_size: 18432, moe_intermediate_size: 2048, num_attention_heads: 56, num_key_value_heads: 4, "
    "head_dim: 128, use_qk_norm: false, n_routed_experts: 384, n_shared_experts: 1, num_experts_per_tok: 8, "
    "num_nextn_predict_layers: 0"
)
_NEMOTRON_SUPER = (
    f"{_COMMON}, pad_token_id: null, eos_token_id: [1], "
    "vocab_size: 131072, hidden_size: 4096, num_hidden_layers: 32, first_k_dense_replace: 1, "
    "intermediate_size: 10944, moe_intermediate_size: 5632, num_attention_heads: 96, num_key_value_heads: 8, "
    "head_dim: 128, use_qk_norm: false, n_routed_experts: 64, n_shared_experts: 1, num_experts_per_tok: 2, "
    "num_nextn_predict_layers: 0"
)
_SHARED_EIGHTH = "no shared expert: the one that a GLM has stands for one of the token's eight"
_LATENT = "latent attention (MLA): heads of 128, as many as give its attention's FLOPs and parameters together"


@dataclass(frozen=True)
class Published:
    """A published run.

    `tokens_per_second` of a GPU; None where only `teraflops` (of the model, per GPU) was published. `batch_size`: of
    one pass through the pipeline; runs that make several before an update are predicted as so many steps.
    """

    name: str
    model: str
    num_gpus: int
    batch_size: int
    parallel: str
    teraflops: float
    tokens_per_second: float | None
    expressed: str
    source: str = AUTOMODEL
    seq_len: int = 4096
    low_precision: str = "none"
    gpu: str = "h100-80gb"
    lora: str | None = None


ROWS = (
    Published(
        "Qwen3-30B-A3B",
        _QWEN3_30B,
        8,
        512,
        "ep: 8, micro_batch_size: 4, recompute: full, ep_dispatch: deepep, reduce_gradients: last_micro_batch",
        277,
        12_040,
        _SHARED_EIGHTH,
    ),
    Published(
        "DeepSeek-V3",
        _DEEPSEEK_V3,
        256,
        512,
        "pp: 4, pipeline_schedule: interleaved_1f1b, pipeline_stages_per_rank: 8, ep: 64, micro_batch_size: 1, "
        "recompute: full, ep_dispatch: deepep",
        250,
        1_002,
        _LATENT,
    ),
    Published(
        "DeepSeek-V3",
        _DEEPSEEK_V3,
        1024,
        2048,
        "pp: 4, pipeline_schedule: interleaved_1f1b, pipeline_stages_per_rank: 8, ep: 64, micro_batch_size: 1, "
        "recompute: full, ep_dispatch: deepep",
        216,
        865,
        _LATENT,
    ),
    Published(
        "Kimi K2",
        _KIMI_K2,
        256,
        256,
        "pp: 8, pipeline_schedule: interleaved_1f1b, pipeline_stages_per_rank: 4, ep: 32, micro_batch_size: 1, "
        "recompute: full, ep_dispatch: deepep",
        189,
        924,
        _LATENT,
    ),
    Published(
        "Nemotron-3-Super 120B-A12B",
        _NEMOTRON_SUPER,
        64,
        512,
        "ep: 64, micro_batch_size: 2, recompute: full, ep_dispatch: deepep, reduce_gradients: last_micro_batch",
        334,
        4_497,
        "no Mamba layers, no latent space of experts: Air's attention and experts of its width, as many layers as give "
        "the FLOPs per token; two wide experts send what 22 narrow ones of a quarter of the width do",
    ),
    Published(
        "Qwen3-235B-A22B, fp8",
        _QWEN3_235B,
        256,
        2048,
        "tp: 2, pp: 8, pipeline_schedule: interleaved_1f1b, pipeline_stages_per_rank: 4, ep: 32, micro_batch_size: 1",
        253,
        None,
        f"{_SHARED_EIGHTH}; batch not published with this figure, 2,048 as in the recipe",
        "Megatron Bridge, performance summary",
        low_precision="fp8",
    ),
    *(
        Published(
            f"GLM-4.5-Air, LoRA 16, {seq_len // 1024}K",
            "glm45_air_106b",
            8,
            8,
            "micro_batch_size: 1, recompute: full",
            utilisation * 989.4,
            None,
            "layout and engine not published: one sequence on each GPU, everything computed again, plain torch; "
            "utilisation taken to count no gradients of frozen weights",
            "published utilisation (reference, section 7)",
            seq_len=seq_len,
            gpu="h200",
            lora="rank=16,target=q_proj+k_proj+v_proj+o_proj",
        )
        for seq_len, utilisation in ((16_384, 0.198), (65_536, 0.251))
    ),
)


def predict(row: Published) -> StepTime:
    """In nodes of eight GPUs with an adapter of 400 Gb/s each, as DGX H100 has them."""
    text = _RUN.format(
        seq_len=row.seq_len,
        batch_size=row.batch_size,
        mtp=0,
        parallel=row.parallel,
        low_precision=row.low_precision,
        model=row.model if row.lora else f"{{{row.model}}}",
    )
    config = load_config(text)
    layout, machine, kernels = resolve_layout(config, row.num_gpus), find_machine(row.gpu, "ib400"), Kernels.of(config)
    if row.lora:
        return predict_step(config, layout, machine, kernels, find_stage("lora", parse_lora(row.lora)))
    # Transformer Engine's kernels: fused as ours, and cuDNN's attention, which reaches what FlashAttention 3 does.
    return predict_step(config, layout, machine, replace(kernels, implementation="triton", attention="flash3"))


def compare(rows: tuple[Published, ...] = ROWS) -> list[dict[str, Any]]:
    """One entry for each row; `error` is predicted over published, less one."""
    found = []
    for row in rows:
        step = predict(row)
        flops = step.model_flops / step.tokens
        published = row.tokens_per_second or row.teraflops * 1e12 / flops
        found.append(
            {
                "name": row.name,
                "num_gpus": row.num_gpus,
                "layout": row.parallel,
                "expressed": row.expressed,
                "source": row.source,
                "published_tflops": row.teraflops,
                "published_tokens_per_second": published,
                "flops_per_token": flops,
                "predicted_tokens_per_second": step.tokens_per_second / row.num_gpus,
                "predicted_tflops": row.teraflops * step.tokens_per_second / row.num_gpus / published,
                "parts": step.parts,
            }
        )
    ratios = [entry["predicted_tokens_per_second"] / entry["published_tokens_per_second"] for entry in found]
    for index, (entry, ratio) in enumerate(zip(found, ratios, strict=True)):
        others = [math.log(other) for position, other in enumerate(ratios) if position != index]
        factor = math.exp(sum(others) / len(others))
        entry |= {"error": ratio - 1, "factor_of_others": factor, "error_with_factor": ratio / factor - 1}
    return found


def published_table() -> str:
    """The same for the documentation."""
    columns = ("TFLOP/s of a GPU", "predicted", "predicted / published", "with the others' factor", "expressed")
    header = ["published run", "GPUs", *columns]
    rows = [
        [
            row["name"],
            f"{row['num_gpus']:,}",
            f"{row['published_tflops']:.0f}",
            f"{row['predicted_tflops']:.0f}",
            f"{1 + row['error']:.2f}",
            f"{1 + row['error_with_factor']:.2f}",
            row["expressed"],
        ]
        for row in compare()
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in (header, ["---"] * len(header), *rows))


def main() -> None:
    rows = compare()
    for row in rows:
        print(
            f"{row['name']:28} {row['num_gpus']:5} GPUs, tokens/s of each: published "
            f"{row['published_tokens_per_second']:6.0f}, predicted {row['predicted_tokens_per_second']:6.0f} "
            f"({row['error']:+.0%}; with the others' factor {row['error_with_factor']:+.0%})"
        )
    means = {key: sum(abs(row[key]) for row in rows) / len(rows) for key in ("error", "error_with_factor")}
    print(f"mean error {means['error']:.0%}, with the others' factor {means['error_with_factor']:.0%}")
    content = {"rows": rows, "mean_error": means["error"], "mean_error_with_factor": means["error_with_factor"]}
    write_result(
        "plan_published",
        content,
        code=[f"src/glmforge/plan/{room}" for room in ("counts", "machine", "stages", "time", "work")],
    )


if __name__ == "__main__":
    main()
