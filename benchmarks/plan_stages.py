"""The tables of docs/stages.md: what the stages of GLM-4.5-Air train and cost, and what serving GLM-4.6 takes.

    python benchmarks/plan_stages.py      # print the tables
    python scripts/doc_tables.py          # write them into the page

All figures are computed by the code that plans runs; none is a measurement. Nothing needs a GPU, weights or torch.
"""

from harness import table

from glmforge.config.layout import resolve_layout
from glmforge.config.load import load_config, load_model_config
from glmforge.config.lora import ATTENTION, LoraConfig
from glmforge.config.optim import OptimConfig
from glmforge.plan.counts.stage_summary import summarise_stage
from glmforge.plan.layout import with_assumed_steps
from glmforge.plan.machine.machine import find_machine
from glmforge.plan.memory.estimate import estimate_memory, held_bytes
from glmforge.plan.memory.purposes import Purpose
from glmforge.plan.serving.deployment import Deployment
from glmforge.plan.serving.formats import WEIGHT_FORMATS
from glmforge.plan.serving.summary import ServingQuestion, summarise_serving
from glmforge.plan.stages.stage import PRETRAINING, TrainingStage, find_stage, stage_of
from glmforge.plan.time.step_time import predict_step

AIR, GLM46 = load_model_config("glm45_air_106b"), load_model_config("glm46_355b")
STAGES: dict[str, TrainingStage] = {
    "pretrain, midtrain, sft": PRETRAINING,
    "lora, rank 16 on q, k, v, o": find_stage("lora", LoraConfig(rank=16)),
    "lora, rank 16 on these and experts": find_stage("lora", LoraConfig(rank=16, targets=(*ATTENTION, "experts"))),
    "reward": find_stage("reward"),
    "rl, actor alone (`grpo_air_64gpu`)": stage_of(load_config("grpo_air_64gpu")),
    "rl, four models (`ppo_air`)": stage_of(load_config("ppo_air")),
}
RL_RUNS = {"grpo_air_64gpu": (64, "H100 SXM"), "ppo_air": (64, "H200 SXM"), "grpo_355b": (256, "H200 SXM")}
LENGTH = 16384
QUESTION = ServingQuestion(context=GLM46.max_position_embeddings, length=8192, seconds_per_token=0.05)
DEVICES = ("H100 SXM", "H200 SXM")


def stages_table() -> str:
    """Air at 16K under AdamW, all models of a stage together."""
    adamw = OptimConfig(matrix_optimizer="adamw")
    rows = []
    for name, stage in STAGES.items():
        models = summarise_stage(AIR, adamw, stage, LENGTH, with_mtp=False)
        states = [model.state for model in models]
        sizes = [
            sum(sizes) / 1e9 for sizes in zip(*((s.weights, s.gradients, s.optimizer) for s in states), strict=True)
        ]
        trained = sum(model.trained for model in models)
        flops = sum(model.flops_per_token for model in models) / 1e9
        rows.append([name, f"{trained:,}", *(f"{size:,.1f}" for size in sizes), f"{flops:,.1f}"])
    return table(["stage of Air", "trained", "weights, GB", "gradients, GB", "optimizer, GB", "GFLOP per token"], rows)


def serving_table() -> str:
    """GLM-4.6 on a node of eight, format by format."""
    rows = []
    for stored in WEIGHT_FORMATS:
        row = [stored.name]
        for device in DEVICES:
            found = summarise_serving(Deployment(GLM46, find_machine(device), 8, stored), QUESTION)
            if device == DEVICES[0]:
                row += [f"{found.deployment.weight_bytes / 1e9:,.0f}", f"{found.fewest_gpus}"]
            batched = found.batched
            row += [f"{found.at_context}", f"{batched.batch} / {batched.tokens_per_second:,.0f}" if batched else "none"]
        rows.append(row)
    columns = [f"{what}, 8 x {device}" for device in DEVICES for what in ("longest sequences", "batch / tokens/s")]
    return table(["weights of GLM-4.6", "GB", f"fewest {DEVICES[0]}", *columns], rows)


def rl_table() -> str:
    """The packaged runs of stage rl: the fullest GPU, and a step."""
    rows = []
    for name, (num_gpus, device) in RL_RUNS.items():
        written = load_config(name)
        stage, machine = stage_of(written), find_machine(device)
        config, _ = with_assumed_steps(written, stage.rollout, num_gpus)
        layout = resolve_layout(config, num_gpus)
        (place,) = estimate_memory(config, layout, stage).places
        step = predict_step(config, layout, machine, stage=stage)
        sizes = [held_bytes(place.at_peak), place.at_peak[Purpose.GATHERED], place.at_peak[Purpose.CACHE], place.peak]
        rollout, scoring = step.parts["rollout"], step.parts.get("scoring", 0.0)
        seconds = [rollout, scoring, step.seconds - rollout - scoring]
        row = [f"`{name}`", f"{num_gpus} {machine.accelerator.name}", *(f"{size / 1e9:,.1f}" for size in sizes)]
        rows.append([*row, *(f"{part:,.0f}" for part in seconds)])
    memory = ("models, GB a GPU", "engine's weights", "its cache", "peak")
    return table(["run", "GPUs", *memory, "rollout, s", "scoring, s", "training, s"], rows)


TABLES = [stages_table, serving_table, rl_table]


if __name__ == "__main__":
    print(*(make() for make in TABLES), sep="\n")
