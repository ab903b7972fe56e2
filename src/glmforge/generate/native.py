"""A step of a whole model by the native kernels: no module of it is called, their weights are read where they lie.

Only for a model as it is written (`fits`): one with adapters, quantised maps, experts on other ranks or limited groups
of experts goes module by module. So does one whose weights are sharded, as long as they are not gathered.

Shapes: T tokens, L wanted tokens, V vocab_size, K experts of a token.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glmforge.generate.step import StepTokens
from glmforge.kernels.native.calls import TYPES, Tokens, is_available
from glmforge.kernels.native.layers import Layer, Types, run_head, run_layers
from glmforge.model.block import DecoderLayer
from glmforge.model.dispatch import LocalDispatcher
from glmforge.model.head import LMHead, as_they_are
from glmforge.model.layers import Embedding, Linear, RMSNorm, SwiGLU, matmul
from glmforge.model.moe import Experts, MoE
from glmforge.model.placement import ONE_DEVICE, Region
from glmforge.model.rope import Rope
from glmforge.model.router import Router
from glmforge.model.transformer import GlmMoe


def fits(model: GlmMoe, *, with_mtp: bool = True) -> bool:
    """Whether the kernels compute what the modules of `model` do, and can be obtained here; of MTP layers if
    `with_mtp`.
    """
    config, modules = model.config, list(_modules(model, with_mtp=with_mtp))
    routers = [module for module in modules if isinstance(module, Router)]
    weights = [weight for module in modules for weight in module.parameters(recurse=False)]
    others = (module for module in modules if not isinstance(module, Router))
    dtypes = {weight.dtype for module in others for weight in module.parameters(recurse=False)}
    return (
        model.lm_head is not None
        and all(weight.device.type == "cpu" and type(weight) is nn.Parameter for weight in weights)
        and len(dtypes) == 1
        and all(router.weight.dtype in {torch.float32, *dtypes} for router in routers)
        and config.n_group == config.topk_group
        and all(_is_as_written(module) for module in modules)
        and (model.compute_dtype, *dtypes) in {(dtype, dtype) for dtype in TYPES} | {(torch.bfloat16, torch.float32)}
        and is_available()
    )


def _modules(model: GlmMoe, *, with_mtp: bool) -> Iterator[nn.Module]:
    """Those that are run."""
    not_run = set() if with_mtp else {module for layer in model.mtp_layers for module in layer.modules()}
    return (module for module in model.modules() if module not in not_run)


def _is_as_written(module: nn.Module) -> bool:
    if type(getattr(module, "region", ONE_DEVICE)) is not Region:
        return False
    if isinstance(module, Linear | Router):
        return module.matmul is matmul
    if isinstance(module, Embedding):
        return module.lookup is F.embedding
    if isinstance(module, LMHead):
        return module.operands is as_they_are
    if isinstance(module, Experts):
        own = module.gate_up_matmul == module.matmul and module.down_matmul == module.matmul
        return own and isinstance(module.dispatcher, LocalDispatcher) and module.capacity_factor is None
    return True


class NativeModel:
    """`model`, of which `fits` holds, with the keys and values of the layers that are run."""

    def __init__(self, model: GlmMoe, keys: dict[int, Tensor], values: dict[int, Tensor]) -> None:
        self.model, self.keys, self.values = model, keys, values
        with_mtp = any(layer.self_attn.layer in keys for layer in model.mtp_layers)
        modules = _modules(model, with_mtp=with_mtp)
        self.weights = [weight for module in modules for weight in module.parameters(recurse=False)]
        assert model.lm_head is not None, "a whole model"
        self.types = Types(model.compute_dtype, model.lm_head.weight.dtype)
        self._addresses: list[int] = []
        self._layers: list[Layer] = []
        self._cos_SR = self._sin_SR = torch.empty(0, model.config.rotary_dim)
        self._theta = model.rope_theta
        self._read: tuple[Tensor, RMSNorm]
        """The states that were computed last, and the norm that belongs behind them."""

    def run(self, tokens: StepTokens) -> tuple[Tensor, Tensor]:
        """logits_LV of the wanted tokens, float32, and experts_STK of the S trunk layers, -1 in dense ones."""
        model = self.model
        h_TD = self._embed(tokens.ids_T).float()
        layers = self._current_layers()[: model.config.num_hidden_layers]
        experts_STK = run_layers(layers, self.types, h_TD, *self._rotations(tokens), self._places(tokens))
        assert model.model.norm is not None, "a whole model"
        self._read = h_TD, model.model.norm
        return self._logits(tokens.wanted_L), experts_STK

    def draft(self, tokens: StepTokens, rows: Sequence[int]) -> Tensor:
        """See `speculate.mtp.MtpRunner`."""
        model, (layer, *_), (read_TD, norm) = self.model, self.model.mtp_layers, self._read
        states_TD = norm(read_TD[torch.tensor(rows)]).to(model.compute_dtype)
        h_TD = layer.combine(states_TD, self._embed(tokens.ids_T)).float()
        layers = self._current_layers()[model.config.num_hidden_layers :]
        run_layers(layers, self.types, h_TD, *self._rotations(tokens), self._places(tokens))
        self._read = h_TD, layer.shared_head.norm
        logits_LV = self._logits(tokens.wanted_L)
        self._read = h_TD[tokens.wanted_L], layer.shared_head.norm
        return logits_LV

    def _embed(self, ids_T: Tensor) -> Tensor:
        """As `GlmMoe.embed`, for ids that all exist, on one device: a third of the calls."""
        assert self.model.model.embed_tokens is not None, "a whole model"
        return F.embedding(ids_T, self.model.model.embed_tokens.weight).to(self.types.compute)

    def _rotations(self, tokens: StepTokens) -> tuple[Tensor, Tensor]:
        """Cosines and sines [T, R], from a table of all positions so far, rebuilt for another base."""
        longest, theta = max(tokens.paged.lengths), self.model.rope_theta
        if longest > len(self._cos_SR) or theta != self._theta:
            positions_S = torch.arange(2 * longest)
            rope = Rope.at(positions_S, self.model.config.rotary_dim, theta, torch.float32)
            self._cos_SR, self._sin_SR, self._theta = rope.cos_T1R[:, 0], rope.sin_T1R[:, 0], theta
        return self._cos_SR[tokens.positions_T], self._sin_SR[tokens.positions_T]

    def _logits(self, rows_L: Tensor) -> Tensor:
        """What the head makes of the states that were read last."""
        (h_TD, norm), head = self._read, self.model.lm_head
        assert head is not None, "a whole model"
        return run_head(norm.weight, norm.eps, head.weight, self.types, h_TD, rows_L)

    def _places(self, tokens: StepTokens) -> Tokens:
        paged, page_size = tokens.paged, next(iter(self.keys.values())).shape[2]
        return Tokens.of(paged.starts_R1, paged.lengths_R, paged.pages_RM, paged.slots_T, page_size)

    def _current_layers(self) -> list[Layer]:
        """Those of the trunk, and the first MTP layer if it has keys and values."""
        addresses = [weight.data_ptr() for weight in self.weights]
        if addresses != self._addresses:
            self._layers = [self._layer(layer) for layer in self.model.layers if layer.self_attn.layer in self.keys]
            self._addresses = addresses
        return self._layers

    def _layer(self, layer: DecoderLayer) -> Layer:
        config, attention, mlp = self.model.config, layer.self_attn, layer.mlp
        dense = mlp if isinstance(mlp, SwiGLU) else mlp.shared_experts
        weights: dict[str, Tensor | None] = {
            "input_norm": layer.input_layernorm.weight,
            "post_norm": layer.post_attention_layernorm.weight,
            "q_norm": None if attention.q_norm is None else attention.q_norm.weight,
            "k_norm": None if attention.k_norm is None else attention.k_norm.weight,
            "o": attention.o_proj.weight,
            "keys": self.keys[attention.layer],
            "values": self.values[attention.layer],
        }
        for name in "qkv":
            projection = getattr(attention, f"{name}_proj")
            weights |= {name: projection.weight, f"{name}_bias": projection.bias}
        for name in ("gate", "up", "down"):
            weights[name] = getattr(dense, f"{name}_proj").weight
        sizes = {}
        if isinstance(mlp, MoE):
            weights |= {
                "router": mlp.gate.weight,
                "router_bias": mlp.gate.e_score_correction_bias,
                "expert_gate_up": mlp.experts.gate_up_proj,
                "expert_down": mlp.experts.down_proj,
            }
            sizes = {
                "num_experts": config.n_routed_experts,
                "num_choices": config.num_experts_per_tok,
                "router_in_float": mlp.gate.weight.dtype == torch.float32,
            }
        return Layer(
            hidden=config.hidden_size,
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            rotary_dim=config.rotary_dim,
            width=dense.gate_proj.out_features,
            expert_width=config.moe_intermediate_size,
            eps=config.rms_norm_eps,
            routed_scale=config.routed_scaling_factor,
            normalise=config.norm_topk_prob,
            **sizes,
            **{name: weight.data_ptr() for name, weight in weights.items() if weight is not None},
        )
