"""Which gradients a backward pass computes where `optim.rules` freeze parts of the model.

A matrix multiplies once forward, once for its input's gradient and once for its own. A frozen one has no gradient of
its own; and where nothing that the input comes from is trained, no gradient of the input is requested either, so that
below the lowest trained parameter nothing goes backward. Autograd does it so, and the planner counts alike.

Rules say nothing of adapters: a role that trains adapters has the gradients of all inputs.
"""

from collections.abc import Iterable
from typing import NamedTuple, Self

from glmforge.config.model import ModelConfig
from glmforge.config.optim import OptimConfig
from glmforge.config.parameter_groups import is_frozen
from glmforge.config.parameters import EMBEDDING, HEAD, Parameter
from glmforge.config.role import Role

_ORDER: tuple[tuple[str, ...], ...] = (
    ("model.embed_tokens",),
    ("enorm", "hnorm"),
    ("eh_proj",),
    ("input_layernorm",),
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("self_attn.q_norm", "self_attn.k_norm"),
    ("self_attn.o_proj",),
    ("post_attention_layernorm",),
    (
        "mlp.gate",
        "mlp.gate_proj",
        "mlp.up_proj",
        "mlp.experts.gate_up_proj",
        "mlp.shared_experts.gate_proj",
        "mlp.shared_experts.up_proj",
    ),
    ("mlp.down_proj", "mlp.experts.down_proj", "mlp.shared_experts.down_proj"),
    ("shared_head.norm",),
    ("model.norm",),
)
"""The parts of a layer in the order in which they compute, those of a line beside each other. The embedding belongs to
the first layer, the final norm to the last one of the trunk."""
_PLACES = {name: place for place, names in enumerate(_ORDER) for name in names}
_HEADS = len(_ORDER)


class Part(NamedTuple):
    """What computes with a parameter: its layer, and its name there, without "weight" or "bias".

    The head belongs to the layer whose results it reads: the last one of the trunk, and each MTP layer.
    """

    layer: int
    name: str

    @property
    def place(self) -> tuple[int, int]:
        """Smaller is earlier in the forward pass."""
        return self.layer, _PLACES.get(self.name, _HEADS)


def part_of(name: str, model: ModelConfig) -> Part:
    """Of the parameter of this name."""
    name = name.removesuffix(".weight").removesuffix(".bias")
    if name.startswith("model.layers."):
        layer, _, within = name.removeprefix("model.layers.").partition(".")
        return Part(int(layer), within)
    return Part(0 if name == "model.embed_tokens" else model.num_hidden_layers - 1, name)


class Gradients:
    """Of a model with these rows, of which those named in `frozen` are. `is_whole`: none is."""

    def __init__(self, model: ModelConfig, rows: Iterable[Parameter], frozen: frozenset[str]) -> None:
        self.model, self.is_whole = model, not frozen
        self._frozen = {part_of(name, model) for name in frozen if not name.endswith(".bias")}
        if model.tie_word_embeddings and EMBEDDING in frozen:
            self._frozen.add(part_of(HEAD, model))
        trained = (part_of(row.name, model) for row in rows if row.trained and row.name not in frozen)
        # MTP layers follow the trunk's last layer, and nothing follows a head.
        after_all = model.num_hidden_layers + model.num_nextn_predict_layers, _HEADS
        self._first = min((part.place for part in trained if part.name in _PLACES), default=after_all)

    @classmethod
    def of(cls, model: ModelConfig, optim: OptimConfig, role: Role) -> Self:
        """Of a role under the rules of `optim`."""
        rows = [] if role.lora else list(role.parameters(model).values())
        return cls(model, rows, frozenset(row.name for row in rows if row.trained and is_frozen(row.name, optim)))

    def of_weight(self, part: Part) -> bool:
        """Whether the part's weight has a gradient; MTP layers use the same head."""
        weight = part if part.name in _PLACES else Part(self.model.num_hidden_layers - 1, part.name)
        return weight not in self._frozen

    def of_input(self, part: Part) -> bool:
        """Whether the part hands a gradient on to its input: something before it is trained."""
        return self.is_whole or self._first < part.place

    def in_layer(self, layer: int) -> bool:
        """Whether a layer has a backward pass at all."""
        return self.of_input(Part(layer, "shared_head.norm"))
