"""A training by DeepSpeed itself, as a user has it: one rank of it, started by torchrun.

    torchrun --nproc-per-node 2 zero_training.py JOB.json

The job: `config` (directory of the config.json of one of transformers' models), `engine` (DeepSpeed's JSON), `groups`
(of parameters), where to `load` from, `steps`, where to `save` and `dump`, and `steps_after` that. What `dump` gets is
what the engine says of itself: full fp32 weights, both moments, buffers, position, losses.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
from safetensors.torch import save_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

STATES = ("exp_avg", "exp_avg_sq")


def main(job: dict[str, Any]) -> None:
    deepspeed.init_distributed("gloo")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(job["config"]))
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.normal_(0, 0.05)
    groups = parameter_groups(model, job["groups"])
    engine, *_ = deepspeed.initialize(model=model, model_parameters=groups, config=job["engine"])
    if job.get("load"):
        path, client = engine.load_checkpoint(job["load"])
        assert path is not None
        if "buffers" in client:
            engine.module.load_state_dict(client["buffers"], strict=False)
    before = [train(engine, engine.global_steps) for _ in range(job["steps"])]
    if job.get("save"):
        engine.save_checkpoint(job["save"], client_state={"note": ("any", 1.5, None)})
    state, position = state_of(engine), {"steps": engine.global_steps, "samples": engine.global_samples}
    after = [train(engine, engine.global_steps) for _ in range(job["steps_after"])]
    if torch.distributed.get_rank() == 0:
        said = {"position": position, "losses": before, "losses_after": after}
        save_file(state, job["dump"], metadata={key: json.dumps(value) for key, value in said.items()})
    torch.distributed.barrier()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads abort the interpreter's usual end under stage 3


def parameter_groups(model: nn.Module, number: int) -> list[dict[str, Any]]:
    """All parameters in one group, or the vectors in one of their own, without decay."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if number == 1:
        return [{"params": parameters}]
    vectors = [p for p in parameters if p.dim() == 1]
    return [{"params": [p for p in parameters if p.dim() > 1]}, {"params": vectors, "weight_decay": 0.0}]


def train(engine: deepspeed.DeepSpeedEngine, step: int) -> float:
    generator = torch.Generator().manual_seed(100 * step + torch.distributed.get_rank())
    rows = torch.randint(0, engine.module.config.vocab_size, (1, 16), generator=generator)
    loss = engine(input_ids=rows, labels=rows).loss
    engine.backward(loss)
    engine.step()
    return float(loss.detach())


def state_of(engine: deepspeed.DeepSpeedEngine) -> dict[str, torch.Tensor]:
    """What the engine itself says, by "fp32.<name>", "<moment>.<name>" and "buffer.<name>"; collective."""
    if engine.zero_optimization_stage() < 3:
        # DeepSpeed 0.19.8 links the states after the step of the first group, when those of others do not exist yet.
        engine.optimizer._hp_optimizer_states_linked = False
        engine.optimizer._lazy_init_hp_params_optimizer_state()
    found = {}
    for name, parameter in engine.module.named_parameters():
        found[f"fp32.{name}"] = safe_get_full_fp32_param(parameter)
        found |= {f"{state}.{name}": safe_get_full_optimizer_state(parameter, state) for state in STATES}
    found |= {f"buffer.{n}": b.float() for n, b in engine.module.named_buffers() if n in engine.module.state_dict()}
    return {name: tensor.detach().clone().contiguous() for name, tensor in found.items()}


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
