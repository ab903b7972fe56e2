"""A slice as it is trained: glmforge's own step, transformers' and a plain composition's, on the same batches.

What all have in common: the slice's widths, its rows cut in the same micro-batches, random tokens that are as unevenly
frequent as words are (Zipf), clipping and AdamW (glmforge also Muon).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from glmforge.backend.native import NativeBackend
from glmforge.config.kernels import KernelsConfig
from glmforge.config.layout import resolve_layout
from glmforge.config.model import ModelConfig
from glmforge.config.schema import RunConfig
from glmforge.data.stream.batch import IGNORED_LABEL, Batch
from glmforge.dryrun.run import dry_run
from glmforge.model.moe import MoE
from glmforge.model.router import Router, Routes
from glmforge.objectives.next_token import NextTokenObjective
from glmforge.optim.optimizer import build_optimizer
from glmforge.parallel.build import DTYPES, allocate, lay_out_model
from glmforge.parallel.world import World
from glmforge.plan.counts.flops import train_flops_per_token
from glmforge.training.step import StepResult, train_step
from gpu.composition import Composition
from gpu.results import TooLargeError
from gpu.slices import SLICES

TINY = (
    "model.hidden_size=64",
    "model.intermediate_size=96",
    "model.moe_intermediate_size=32",
    "model.num_attention_heads=4",
    "model.num_key_value_heads=2",
    "model.head_dim=16",
    "model.vocab_size=512",
    "model.num_hidden_layers=3",
)
"""What makes a slice small enough for a dry run."""
MARGIN = 1.06
"""What the allocator cannot use of what it holds, and libraries' workspaces."""


def load(name: str, *settings: str, dry: bool) -> RunConfig:
    """The run of a slice; in a dry run with small widths and few tokens, without compiling."""
    if not dry:
        return SLICES[name].load(*settings)
    config = SLICES[name].load(*settings, *TINY, "parallel.compile=false")
    rows = 2 * (config.parallel.micro_batch_size or 1)
    phase = config.phases[0].model_copy(update={"seq_len": 32, "batch_size": rows})
    return config.model_copy(update={"phases": [phase]})


def cut(config: RunConfig, seq_len: int) -> RunConfig:
    """The same rows, shorter."""
    return config.model_copy(update={"phases": [config.phases[0].model_copy(update={"seq_len": seq_len})]})


def check_memory(config: RunConfig, free_bytes: int) -> int:
    """The peak of a step by dry run, in bytes. Raises `TooLargeError` if that is more than there is."""
    planned = dry_run(config, 1).peak
    if planned * MARGIN > free_bytes:
        raise TooLargeError(f"needs {planned / 1e9:.1f} GB by dry run, {free_bytes / 1e9:.1f} GB are free")
    return planned


def triton_settings() -> list[str]:
    """Triton's implementation of every operation that has one."""
    operations = KernelsConfig.model_fields
    return [f"kernels.{name}=triton" for name in operations if "triton" in KernelsConfig.implementations(name)]


def batch_of(config: RunConfig, seed: int, device: torch.device) -> Batch:
    """The rows of a step, each one document."""
    phase, generator = config.phases[0], torch.Generator().manual_seed(seed)
    shape = (phase.batch_size, phase.seq_len)
    frequencies = 1 / torch.arange(2, config.model.vocab_size + 2, dtype=torch.float64)
    ids_N = torch.multinomial(frequencies, shape[0] * shape[1], replacement=True, generator=generator)
    ids_BS = ids_N.view(shape).to(device)
    labels_BS = nn.functional.pad(ids_BS[:, 1:], (0, 1), value=IGNORED_LABEL)
    return Batch(ids_BS, labels_BS, ((phase.seq_len,),) * shape[0], tuple(range(shape[0])), (0,) * shape[0])


def tokens_of(config: RunConfig) -> int:
    return config.phases[0].batch_size * config.phases[0].seq_len


def flops_of(config: RunConfig, *, with_mtp: bool = True) -> float:
    """Model FLOPs of a step, by the closed form that `glmforge plan` uses."""
    return train_flops_per_token(config.model, config.phases[0].seq_len, with_mtp) * tokens_of(config)


class LevelRouter(Router):
    """Sends every expert the same number of tokens; scores, weights and gradients are the router's own."""

    def forward(self, *args: object, **kwargs: object) -> Routes:
        routes = super().forward(*args, **kwargs)  # type: ignore[arg-type]
        slots_TK = torch.arange(routes.experts_TK.numel(), device=routes.experts_TK.device)
        return routes._replace(experts_TK=(slots_TK % self.config.n_routed_experts).view_as(routes.experts_TK))


@dataclass
class OwnStep:
    """The trainer's own step of a slice."""

    config: RunConfig
    backend: NativeBackend
    batches: list[Batch]
    num_steps: int = 0
    last: StepResult | None = None

    @classmethod
    def build(cls, config: RunConfig, device: torch.device, *, level: bool = False) -> "OwnStep":
        layout = resolve_layout(config, 1)
        world = World(0, 1, device, layout)
        model = lay_out_model(config, world)
        allocate(model, config)
        for part in model.parts:
            fill_(part, {name: row.initial for name, row in model.table.items()}, config.model.initializer_range)
            for module in part.modules():
                if level and isinstance(module, MoE):
                    module.gate.__class__ = LevelRouter
        dtype = DTYPES[config.precision.compute]
        optimizer = build_optimizer(
            model.named_parameters(), model.table, config.optim, world=world, compute_dtype=dtype, seed=config.seed
        )
        model.train()
        return cls(config, NativeBackend(model, optimizer), [batch_of(config, seed, device) for seed in range(3)])

    def objective(self) -> NextTokenObjective:
        return NextTokenObjective(self.config.phases[0], self.config.model.num_nextn_predict_layers)

    def micro_batches(self) -> list[Batch]:
        size = self.config.parallel.micro_batch_size or self.config.phases[0].batch_size
        return self.batches[self.num_steps % len(self.batches)].micro_batches(size)

    def __call__(self) -> float:
        """One step; the loss."""
        self.last = train_step(
            self.backend,
            self.objective(),
            self.micro_batches(),
            lr=1e-4,
            grad_clip=1.0,
            router_bias_rate=self.config.phases[0].router_bias_rate,
        )
        self.num_steps += 1
        return self.last.main_loss

    @property
    def imbalance(self) -> float:
        """Tokens of the fullest expert over the mean, the worst of the layers in the last step."""
        assert self.last is not None
        counts_LE = self.last.counts_LE.double()
        return round((counts_LE.amax(1) / counts_LE.mean(1)).max().item(), 3)


@torch.no_grad()
def fill_(module: nn.Module, initial: dict[str, str], std: float) -> None:
    """Initial values drawn on the device: the trainer's own come from the CPU, minutes for a slice."""
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        kind = initial[name]
        if kind == "normal":
            tensor.normal_(0, std)
        else:
            tensor.fill_(1.0 if kind == "ones" else 0.0)


@dataclass
class OtherStep:
    """A step of another model: micro-batches, clipping, AdamW fused by PyTorch."""

    config: RunConfig
    model: nn.Module
    loss_of: Callable[[Tensor, Tensor], Tensor]
    batches: list[Batch]
    num_steps: int = 0

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)

    def __call__(self) -> float:
        size = self.config.parallel.micro_batch_size or self.config.phases[0].batch_size
        micro_batches = self.batches[self.num_steps % len(self.batches)].micro_batches(size)
        losses = []
        for batch in micro_batches:
            loss = self.loss_of(batch.ids_BS, batch.labels_BS) / len(micro_batches)
            loss.backward()
            losses.append(loss.detach())
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.num_steps += 1
        return float(torch.stack(losses).sum())


def transformers_step(config: RunConfig, device: torch.device, *, compiled: bool) -> OtherStep:
    """transformers' own model in its fastest form: weights in bf16, grouped matmuls, SDPA, its own loss."""
    from transformers import Glm4MoeForCausalLM

    with torch.device("meta"):
        model = Glm4MoeForCausalLM(transformers_config(config.model)).train()
    recompute = config.parallel.recompute != "none"
    for parameter in model.parameters():
        parameter.data = parameter.data.to(DTYPES[config.precision.compute])
    model.to_empty(device=device)
    _renew_buffers(model, config.model)
    fill_parameters_(model, config.model.initializer_range)
    if recompute:
        model.gradient_checkpointing_enable()
    forward = torch.compile(model) if compiled else model

    def loss_of(ids_BS: Tensor, labels_BS: Tensor) -> Tensor:
        return forward(input_ids=ids_BS, labels=ids_BS, use_cache=False).loss

    return OtherStep(config, model, loss_of, [batch_of(config, seed, device) for seed in range(3)])


def transformers_config(config: ModelConfig):
    from transformers import Glm4MoeConfig

    fields = config.model_dump(exclude={"rope_theta", "partial_rotary_factor", "num_nextn_predict_layers", "heads"})
    rope = {
        "rope_type": "default",
        "rope_theta": config.rope_theta,
        "partial_rotary_factor": config.partial_rotary_factor,
    }
    made = Glm4MoeConfig(**fields, rope_parameters=rope, num_nextn_predict_layers=0)
    made._attn_implementation = "sdpa"
    made._experts_implementation = "grouped_mm"
    return made


def _renew_buffers(model: nn.Module, config: ModelConfig) -> None:
    """What a module computes when it is made has no values after `to_empty`: rotary frequencies, router biases."""
    for module in model.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            if "inv_freq" in name:
                exponents = torch.arange(0, config.rotary_dim, 2, device=buffer.device).float() / config.rotary_dim
                buffer.copy_(config.rope_theta**-exponents)
            else:
                buffer.zero_()


@torch.no_grad()
def fill_parameters_(model: nn.Module, std: float) -> None:
    """Matrices N(0, std), norms 1, biases 0, by the names all these models share."""
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            parameter.fill_(1)
        elif name.endswith("bias"):
            parameter.zero_()
        else:
            parameter.normal_(0, std)


def composition_step(config: RunConfig, device: torch.device, *, compiled: bool) -> OtherStep:
    """A plain model of PyTorch's own operators, each layer compiled; see `gpu.composition`."""
    with torch.device("meta"):
        model = Composition(config.model, DTYPES[config.precision.compute])
    model.to_empty(device=device)
    _renew_buffers(model, config.model)
    fill_parameters_(model, config.model.initializer_range)
    model.recompute = config.parallel.recompute != "none"
    if compiled:
        model.compile_layers()
    return OtherStep(config, model, model.loss, [batch_of(config, seed, device) for seed in range(3)])
