"""The table of docs/claims.md: what guides and users say of GLM-4.5, what comes out when it is computed, and a verdict.

    python benchmarks/claims.py       # print the table
    python scripts/doc_tables.py      # write it into the page

Every figure of the second column is computed here, by the code that plans runs; tests hold the page to it. Nothing
needs a GPU, weights or torch.
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from harness import table
from record import ROOT

from glmforge.config import load_config
from glmforge.config.adapters import adapter_rows
from glmforge.config.layout import resolve_layout
from glmforge.config.load import load_model_config
from glmforge.config.lora import LoraConfig
from glmforge.config.model import ModelConfig
from glmforge.config.schema import RunConfig
from glmforge.plan.cost.phase_time import DAY, model_flops
from glmforge.plan.cost.sheet import SHEETS, sheet_rows
from glmforge.plan.cost.storage import storage_of
from glmforge.plan.counts.memory import kv_cache_bytes_per_token, weight_bytes
from glmforge.plan.counts.parameters import count_parameters
from glmforge.plan.layout import select_phase
from glmforge.plan.machine.hardware import Accelerator
from glmforge.plan.machine.machine import find_machine
from glmforge.plan.machine.network import find_network
from glmforge.plan.memory.estimate import estimate_memory
from glmforge.plan.serving import formats
from glmforge.plan.stages.stage import find_stage

_GB, _TB = 1e9, 1e12


class Claim(NamedTuple):
    """A row of the table; `compute` gives what comes out and the verdict."""

    words: str
    compute: Callable[[], tuple[str, str]]


@cache
def model(name: str) -> ModelConfig:
    return load_model_config(name)


@cache
def run(name: str, *overrides: str) -> RunConfig:
    return load_config(ROOT / "configs" / f"{name}.yaml", list(overrides))


def gpu(name: str) -> Accelerator:
    return find_machine(name).accelerator


def verdict(holds: bool, otherwise: str) -> str:
    """`otherwise` says what is wrong."""
    return "holds" if holds else otherwise


def total_355b() -> tuple[str, str]:
    counts = count_parameters(model("glm45_355b"))
    with_mtp, without = counts.with_mtp.total, counts.without_mtp.total
    return f"{with_mtp:,} with the MTP layer, {without:,} without", verdict(without < 355e9 < with_mtp, "does not hold")


def active_355b() -> tuple[str, str]:
    counts = count_parameters(model("glm45_355b"))
    trunk, with_head = counts.trunk_active.total, counts.active.total
    return f"{trunk:,} in the layers, {with_head:,} with the head", verdict(round(trunk / 1e9) == 32, "does not hold")


def air() -> tuple[str, str]:
    counts = count_parameters(model("glm45_air_106b"))
    total, trunk, with_head = counts.without_mtp.total, counts.trunk_active.total, counts.active.total
    holds = (int(total / 1e9), round(trunk / 1e9)) == (106, 12)
    return f"{total:,} without MTP; active {trunk:,} in the layers, {with_head:,} with the head", verdict(
        holds, "does not hold"
    )


def published_358b() -> tuple[str, str]:
    counts = count_parameters(model("glm45_355b"))
    copies = counts.with_mtp_copies.total - counts.with_mtp.total
    words = f"{counts.with_mtp_copies.total:,} stored, of which {copies:,} repeat embedding and head for MTP"
    return words, verdict(round(counts.with_mtp_copies.total / 1e9) == 358, "does not hold")


def mtp_in_transformers() -> tuple[str, str]:
    counts = count_parameters(model("glm45_355b"))
    dropped = counts.with_mtp.total - counts.without_mtp.total
    return f"it leaves {dropped:,} parameters out on loading", "does not hold: MTP has to be read from the files"


def bf16_on_eight() -> tuple[str, str]:
    size, room = weight_bytes(model("glm45_355b"), "bf16"), 8 * gpu("H100 SXM").memory_bytes
    larger = 8 * gpu("H200 SXM").memory_bytes
    words = f"weights {size / _GB:.0f} GB, memory {room / _GB:.0f} GB; 8 x 141 GB leave {(larger - size) / _GB:.0f} GB"
    return words, verdict(size < room, "does not hold: the weights alone do not fit")


def four_bit_on_two() -> tuple[str, str]:
    config, card = model("glm45_355b").model_copy(update={"num_nextn_predict_layers": 0}), gpu("RTX 4090").memory_bytes
    size = formats.weight_bytes(config, formats.find_format("q4_0")).total
    words = f"as Q4_0, without MTP, {size / _GB:.0f} GB; memory {2 * card / _GB:.0f} GB"
    return words, verdict(size < 2 * card, f"does not hold: weights alone take {-(-int(size) // card)} such cards")


def air_files() -> tuple[str, str]:
    size = 2 * count_parameters(model("glm45_air_106b")).with_mtp_copies.total
    return f"{size / _GB:.0f} GB in bf16", verdict(abs(size / _GB - 220) < 2, "does not hold")


def kv_cache() -> tuple[str, str]:
    config = model("glm46_355b")
    per_token = kv_cache_bytes_per_token(config)
    size = per_token * config.max_position_embeddings
    words = f"{config.max_position_embeddings:,} x {per_token:,} bytes = {size / _GB:.1f} GB"
    return words, verdict(round(size / _GB) == 76, "does not hold")


def peak(name: str, said: float) -> Callable[[], tuple[str, str]]:
    """A bf16 peak in PFLOP/s that a guide gives."""

    def compute() -> tuple[str, str]:
        dense = gpu(name).bf16_flops / 1e15
        words = f"{1e3 * dense:.0f} TFLOP/s for dense matrices"
        wrong = f"does not hold: {said / dense:.1f} times too high, "
        wrong += "the rate of sparse matrices" if round(said / dense) == 2 else "the rate of sparse 8-bit integers"
        return words, verdict(said <= dense, wrong)

    return compute


def all_reduce() -> tuple[str, str]:
    each_way = gpu("H800 SXM").nvlink_bandwidth
    assert each_way is not None
    return f"NVLink carries {each_way / _GB:.0f} GB/s each way", verdict(
        each_way > 300e9, "does not hold: no H800 can pass"
    )


def product_of_axes() -> tuple[str, str]:
    layout = resolve_layout(run("pretrain_glm45_355b_guide"), 8192)
    words = (
        f"tp {layout.tp} x pp {layout.pp} x dp_shard {layout.dp_shard} = {layout.world_size:,}; ep {layout.ep} lies "
    )
    words += f"over these, and {layout.data_ranks} ranks read different sequences"
    return words, "the product holds, the reading does not: experts take no GPUs of their own"


def experts_per_gpu() -> tuple[str, str]:
    layout, config = resolve_layout(run("pretrain_glm45_355b_guide"), 8192), model("glm45_355b")
    held = config.n_routed_experts // layout.ep
    return f"{held} of a layer, which {layout.efsdp} ranks share between them", verdict(held == 5, "does not hold")


def small_batches() -> tuple[str, str]:
    config = run("pretrain_glm45_355b_guide")
    layout, phase = resolve_layout(config, 8192), config.phases[0]
    micro, waits = layout.num_micro_batches(phase), layout.pp - 1
    idle, larger = waits / (waits + micro), waits / (waits + 16 * micro)
    words = f"{micro} micro-batches for {layout.pp} pipeline ranks: under 1F1B they idle {100 * idle:.0f} % of the time"
    return words, f"works, but wastes half; with 64M tokens it is {100 * larger:.0f} %"


def muon_rate() -> tuple[str, str]:
    config = run("pretrain_glm45_355b_guide").model
    rms = config.hidden_size**-0.5
    scaled, plain, report = 0.02 * 0.2, 0.02 * rms, 2.5e-4 * 0.2
    words = f"a step moves weights of RMS 0.02 by {scaled:.0e} if updates have the report's RMS of 0.2, by {plain:.1e} "
    words += f"if they are orthogonal; the report's 2.5e-4: {report:.0e}"
    return words, "holds for orthogonal updates without scaling, not for the report's"


def guide_sheet() -> tuple[str, str]:
    sheet = SHEETS["guide"]
    words = f"{sheet.gpu_hours:,.0f} GPU-hours, ${sheet.gpu_dollars:,.0f}; with both lump sums ${sheet.dollars:,.0f}"
    return words, verdict(sheet.gpu_hours == 24_969_216 and round(sheet.dollars / 1e5) == 659, "does not hold")


def implied(days: float) -> str:
    """Utilisation of the guide's GPUs if its tokens take so many days."""
    rows = sheet_rows(run("pretrain_glm45_355b_guide"), SHEETS["guide"], days * DAY)
    return f"{100 * rows[-1].utilisation:.1f} % of the dense peak"


def eighty_two_days() -> tuple[str, str]:
    rows = sheet_rows(run("pretrain_glm45_355b_guide"), SHEETS["guide"], None)
    at_30 = next(row for row in rows if row.words.startswith("at 30"))
    words = f"{implied(82)}; 30 % would take {at_30.days:.0f} days and ${at_30.dollars / 1e6:.1f}M"
    return words, "possible, at under half of what others publish for such models"


def hundred_and_twenty_seven_days() -> tuple[str, str]:
    idle = SHEETS["guide"].gpu_dollars * (1 - 82 / 127)
    return implied(127), f"contradicts the 82 days: 45 days and ${idle / 1e6:.1f}M apart"


def sixty_four_gpus() -> tuple[str, str]:
    config, sheet = run("scaled_down_64gpu"), SHEETS["guide-64"]
    said, *_ = rows = sheet_rows(config, sheet, None)
    at_30 = next(row for row in rows if row.words.startswith("at 30"))
    words = (
        f"{sheet.gpu_hours:,.0f} GPU-hours at {100 * said.utilisation:.1f} % of the peak; at 30 % {at_30.days:.1f} days"
    )
    return words, "far too long for this model, or a far larger one was meant"


def six_n_d() -> tuple[str, str]:
    config = run("pretrain_glm45_355b_guide")
    simple, whole = 6 * 32e9 * 23e12, sum(model_flops(config, phase) for phase in config.phases)
    words = f"{simple:.2e}; with head, attention and MTP {whole:.2e}"
    return words, f"does not hold: {100 * (1 - simple / whole):.0f} % too low"


def recipe_tokens() -> tuple[str, str]:
    guide, report = run("pretrain_glm45_355b_guide"), run("pretrain_glm45_355b")
    theirs, ours = (sum(phase.tokens or 0 for phase in config.phases) for config in (guide, report))
    words = f"15T + 7T + 1T; the report has {ours / _TB:.1f}T in {len(report.phases)} phases"
    return words, verdict(theirs == 23 * 10**12, "does not hold")


def checkpoint(optimizer: str, said: float) -> Callable[[], tuple[str, str]]:
    """TB that a checkpoint is said to have."""

    def compute() -> tuple[str, str]:
        config = run("pretrain_glm45_355b", f"optim.matrix_optimizer={optimizer}")
        size = storage_of(config).checkpoint / _TB
        return f"{size:.3f} TB, fp32 weights and states", verdict(abs(size / said - 1) < 0.01, "does not hold")

    return compute


def lora_parameters(rank: int) -> tuple[int, int]:
    """Parameters and tensors of adapters on q, k, v and o of Air."""
    rows = adapter_rows(model("glm45_air_106b"), LoraConfig(rank=rank))
    return sum(row.size for row in rows), len(rows)


def lora_count() -> tuple[str, str]:
    count, tensors = lora_parameters(16)
    of_64, _ = lora_parameters(64)
    return f"{count:,} in {tensors} tensors", verdict(count > 100e6, f"does not hold: it is rank 64 that has {of_64:,}")


def lora_memory() -> tuple[str, str]:
    settings = ("pp=1", "cp=1", "ep=1", "pipeline_schedule=1f1b", "reshard_after_forward=null", "recompute=full")
    phase = ("batch_ramp=null", "seq_len=16384", "batch_size=32", "mtp_loss_weight=0")
    overrides = [f"parallel.{setting}" for setting in settings] + [f"phases.0.{setting}" for setting in phase]
    config = select_phase(run("pretrain_glm45_air_106b", *overrides), "general")
    peaks = [
        estimate_memory(config, resolve_layout(config, num_gpus), find_stage("lora", LoraConfig(rank=16))).peak / _GB
        for num_gpus in (16, 8)
    ]
    words = f"{peaks[0]:.0f} GB sharded over 16, {peaks[1]:.0f} GB over 8, with frozen weights in bf16 and full "
    words += "recomputation, CUDA's own memory apart (closed forms)"
    return words, verdict(peaks[1] > 90, "does not hold: it fits 80 GB")


def lora_over_two_nodes() -> tuple[str, str]:
    weights, link = weight_bytes(model("glm45_air_106b"), "bf16"), find_network("tcp30").bandwidth
    into_node = weights / 2 * 2 * 2  # the other node's half, forward and backward, in two micro-batches
    adapters = 4 * lora_parameters(16)[0]
    words = f"at least {into_node / _GB:.0f} GB enter each node in a step of two micro-batches, "
    words += f"{into_node / link:.0f} s at 30 Gbit/s; "
    words += f"with a copy in each node the adapters' gradients, {adapters / _GB:.2f} GB"
    return words, "does not hold: one copy per node"


def lora_saves() -> tuple[str, str]:
    state, base = 12 * lora_parameters(16)[0], weight_bytes(model("glm45_air_106b"), "bf16")
    words = f"adapters with AdamW's moments {state / _GB:.2f} GB; the base, {base / _GB:.0f} GB, takes 30 minutes at "
    words += f"{base / 1800 / _GB:.2f} GB/s"
    return words, verdict(state / 10 < 1e8, "does not hold") + ": 10 s is slow for so little"


CLAIMS = (
    Claim("GLM-4.5 has 355B parameters", total_355b),
    Claim("32B of them are active", active_355b),
    Claim("GLM-4.5-Air has 106B parameters, 12B active", air),
    Claim("GLM-4.5's published checkpoint has 358B", published_358b),
    Claim("transformers loads the model with MTP", mtp_in_transformers),
    Claim("Air's published files are 220 GB", air_files),
    Claim("355B in bf16 runs on 8 x 80 GB", bf16_on_eight),
    Claim("355B as Q4 runs on two RTX 4090", four_bit_on_two),
    Claim("202,752 tokens of context take 76 GB of KV cache", kv_cache),
    Claim("an A100 has 1.25 PFLOP/s", peak("A100 SXM 80GB", 1.25)),
    Claim("an H800 has 1.98 PFLOP/s", peak("H800 SXM", 1.98)),
    Claim("an H100 has 2.0 PFLOP/s", peak("H100 SXM", 2.0)),
    Claim("a healthy H800 node does all-reduces at over 300 GB/s", all_reduce),
    Claim("8,192 GPUs are TP 8 x PP 16 x EP 32 x DP 2", product_of_axes),
    Claim("EP 32 puts five experts on a GPU", experts_per_gpu),
    Claim("batches of 4M tokens keep 8,192 GPUs busy", small_batches),
    Claim("Muon's learning rate is 0.02", muon_rate),
    Claim("pre-training takes 23T tokens", recipe_tokens),
    Claim("training takes 6 x 32B x 23T FLOPs", six_n_d),
    Claim("8,192 H800 for 127 days cost $62.4M, with 0.5M and 3M $65.9M", guide_sheet),
    Claim("23T tokens take 127 days on them", hundred_and_twenty_seven_days),
    Claim("23T tokens take 82 days on them", eighty_two_days),
    Claim("24 layers, 32 experts, 100B tokens take 64 H100 30 days", sixty_four_gpus),
    Claim("a checkpoint of 355B with Muon has 2.85 TB", checkpoint("muon", 2.85)),
    Claim("a checkpoint of 355B with AdamW has 4.3 TB", checkpoint("adamw", 4.3)),
    Claim("LoRA of rank 16 on Air's q, k, v, o trains 126M parameters", lora_count),
    Claim("LoRA of Air with 16K tokens takes 109 GB of each GPU", lora_memory),
    Claim("for LoRA, shard Air over two nodes joined by TCP", lora_over_two_nodes),
    Claim("saving only the adapters takes 10 s instead of 30 minutes", lora_saves),
)


def claims_table() -> str:
    """In Markdown."""
    return table(["claim", "computed", "verdict"], ([claim.words, *claim.compute()] for claim in CLAIMS))


TABLES = (claims_table,)

if __name__ == "__main__":
    print(claims_table(), end="")
