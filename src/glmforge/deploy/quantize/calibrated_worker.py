"""Run by the quantiser's own Python (see `environment`): GPTQ or AWQ of a Hugging Face directory by llm-compressor.

    python calibrated_worker.py ORDER.json

Imports nothing of glmforge, which that environment does not have. ORDER: `model`, `out`, `method`, `bits`,
`group_size`, `keep` (patterns of modules that are not rounded), `rows` (token ids), `report` (where the facts go).

Calibration goes layer by layer (llm-compressor's sequential pipeline), and every expert sees every token, so that none
is rounded blindly. Which experts the router itself sent no token to is counted before and reported.

AWQ scales the inputs of linear maps up where their activations are large, and what makes the inputs down. Its mapping
for GLM is our own: the norm before the experts also feeds the router and the shared experts, so all of them are scaled
with it. Then the model before rounding computes the same, which is checked.
"""

import json
import resource
import sys
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme, disable_quantization
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modeling.moe.linearize import linearize_moe
from llmcompressor.modifiers.gptq import GPTQModifier
from llmcompressor.modifiers.quantization import QuantizationModifier
from llmcompressor.modifiers.transform.awq import AWQMapping, AWQModifier
from llmcompressor.pipelines.cache import IntermediatesCache
from transformers import AutoModelForCausalLM

SAME = 1e-5
"""Largest difference of logits that smoothing may make, in units of the largest logit."""

LOADED = 0.1
"""The same of the model read again: bf16 experts, and now and then another expert for a token."""


def main(order_file: str) -> None:
    order = json.loads(Path(order_file).read_text())
    model = AutoModelForCausalLM.from_pretrained(order["model"], dtype="auto", trust_remote_code=False).eval()
    rows = [torch.tensor([row]) for row in order["rows"]]
    idle = experts_without_tokens(model, rows)
    linearize_moe(model)
    probe = rows[0]
    with torch.no_grad():
        before = model(probe).logits.float()
    if not torch.cuda.is_available():  # it has no accelerator to hold memory pinned for
        IntermediatesCache.pin_memory = lambda *_, **__: None
    oneshot(
        model=model,
        dataset=Dataset.from_dict(
            {"input_ids": order["rows"], "attention_mask": [[1] * len(r) for r in order["rows"]]}
        ),
        recipe=recipe(model, order),
        max_seq_length=max(map(len, order["rows"])),
        num_calibration_samples=len(order["rows"]),
        moe_calibrate_all_experts=True,
    )
    facts: dict[str, Any] = {"experts_without_tokens": idle}
    if order["method"] == "awq":
        facts["smoothing_difference"] = smoothing_difference(model, probe, before)
    with torch.no_grad():
        rounded = model(probe).logits.float()
    model.save_pretrained(order["out"], save_compressed=True)
    del model
    facts["difference"] = difference_when_loaded(order["out"], probe, rounded)
    facts["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    Path(order["report"]).write_text(json.dumps(facts))


def recipe(model: Any, order: dict[str, Any]) -> list[Any]:
    """Symmetric integers by groups of inputs: asymmetric ones do not load again into packed experts."""
    weights = QuantizationArgs(
        num_bits=order["bits"], type="int", symmetric=True, strategy="group", group_size=order["group_size"]
    )
    groups = {"group_0": QuantizationScheme(targets=["Linear"], weights=weights)}
    if order["method"] == "gptq":
        return [GPTQModifier(config_groups=groups, ignore=order["keep"])]
    return [AWQModifier(mappings=mappings(model)), QuantizationModifier(config_groups=groups, ignore=order["keep"])]


def mappings(model: Any) -> list[AWQMapping]:
    """Norms and up projections, each with everything that reads what it makes."""
    found = []
    for number, layer in enumerate(model.model.layers):
        at = f"re:^model\\.layers\\.{number}\\."
        found.append(AWQMapping(f"{at}input_layernorm$", [f"{at}self_attn\\.{name}_proj$" for name in "qkv"]))
        readers, mlps = [f"{at}mlp\\.(gate|up)_proj$"], ["mlp"]
        if hasattr(layer.mlp, "experts"):
            num_experts = sum(name.isdigit() for name, _ in layer.mlp.experts.named_children())
            mlps = [f"mlp\\.experts\\.{e}" for e in range(num_experts)] + [r"mlp\.shared_experts"]
            readers = [f"{at}mlp\\.(experts\\.\\d+|shared_experts)\\.(gate|up)_proj$", f"{at}mlp\\.gate$"]
        found.append(AWQMapping(f"{at}post_attention_layernorm$", readers))
        found += [AWQMapping(f"{at}{mlp}\\.up_proj$", [f"{at}{mlp}\\.down_proj$"]) for mlp in mlps]
    return found


@torch.no_grad()
def experts_without_tokens(model: Any, rows: list[torch.Tensor]) -> list[str]:
    """Experts, such as `model.layers.3.mlp.experts.7`, to which the router sends no token of `rows`."""
    counts: dict[str, torch.Tensor] = {}
    handles = []
    for name, module in model.named_modules():
        if name.endswith("mlp.experts"):
            counts[name] = torch.zeros(module.num_experts, dtype=torch.long)

            def count(_: torch.nn.Module, args: tuple[torch.Tensor, ...], name: str = name) -> None:
                counts[name] += torch.bincount(args[1].flatten(), minlength=len(counts[name]))

            handles.append(module.register_forward_pre_hook(count))
    for row in rows:
        model(row)
    for handle in handles:
        handle.remove()
    return [f"{name}.{expert}" for name, of in counts.items() for expert in (of == 0).nonzero().flatten().tolist()]


@torch.no_grad()
def smoothing_difference(model: Any, probe: torch.Tensor, before: torch.Tensor) -> float:
    """Of logits with smoothed weights that are not rounded, in units of the largest; ends the program if too large."""
    rounding = [module for module in model.modules() if getattr(module, "quantization_enabled", False)]
    model.apply(disable_quantization)
    changed = difference(model(probe).logits.float(), before)
    for module in rounding:
        module.quantization_enabled = True
    limit = SAME if next(model.parameters()).dtype == torch.float32 else 2e-2  # bf16: each weight is rounded anew
    if changed > limit:
        sys.exit(f"smoothing changed the logits by {changed:.1e} of the largest; at most {limit:.0e} is rounding")
    return changed


@torch.no_grad()
def difference_when_loaded(directory: str, probe: torch.Tensor, expected: torch.Tensor) -> float:
    """Of logits of what was written to those before, in units of the largest; ends the program if it is another model.
    transformers unpacks experts to bf16, which is about 1e-2."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, trust_remote_code=False).eval()
    changed = difference(model(probe).logits.float(), expected)
    if changed > LOADED:
        sys.exit(f"what was written gives logits that differ by {changed:.1e} of the largest")
    return changed


def difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """In units of the largest."""
    return ((found - expected).abs().max() / expected.abs().max().clamp(min=1)).item()


if __name__ == "__main__":
    main(sys.argv[1])
