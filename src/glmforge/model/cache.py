"""A key/value cache for rows of different length: position p of a row lies in slot p.

Prompts are padded on the right. A padded slot holds keys of no consequence: no query looks past its own position,
and the row's next token overwrites the slot before anything could.

Shapes: B rows, C capacity in tokens, G key/value heads, P head_dim, S new tokens per row.
"""

import torch
from torch import Tensor

from glmforge.config.model import ModelConfig
from glmforge.kernels.attention import cached_attention
from glmforge.model.attention import Attention


class KVCache:
    """Keys and values of all trunk layers; an `Attend` for the tokens that start at `lengths_B` in each row.

    With `reads_all_slots` the unused slots are read as well, under the mask: then a step of S tokens does the same to
    the same tensors however long the rows are, and can be recorded (`kernels.cuda_graph`).
    """

    def __init__(
        self, config: ModelConfig, num_rows: int, capacity: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (
            config.num_hidden_layers,
            num_rows,
            capacity,
            config.num_key_value_heads,
            config.head_dim,
        )
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.lengths_B = torch.zeros(num_rows, dtype=torch.int64, device=device)
        self.num_slots = 0  # slots in use by the longest row, on the host
        self.reads_all_slots = False

    def positions_BS(self, num_new: int) -> Tensor:
        """Positions of the next `num_new` tokens of every row."""
        return self.lengths_B[:, None] + torch.arange(num_new, device=self.lengths_B.device)

    def advance(self, num_tokens_B: Tensor, num_new: int) -> None:
        """Count `num_tokens_B` of the `num_new` tokens just attended to as part of each row (the rest was padding)."""
        self.lengths_B += num_tokens_B
        self.num_slots += num_new

    def __call__(self, module: Attention, q_THP: Tensor, k_TGP: Tensor, v_TGP: Tensor) -> Tensor:
        num_rows = len(self.lengths_B)
        q_BSHP, k_BSGP, v_BSGP = (x.unflatten(0, (num_rows, -1)) for x in (q_THP, k_TGP, v_TGP))
        slots_BS = self.positions_BS(q_BSHP.shape[1])
        rows_B1 = torch.arange(num_rows, device=slots_BS.device)[:, None]
        keys_BCGP, values_BCGP = self.keys[module.layer], self.values[module.layer]
        keys_BCGP[rows_B1, slots_BS] = k_BSGP.to(keys_BCGP.dtype)
        values_BCGP[rows_B1, slots_BS] = v_BSGP.to(values_BCGP.dtype)
        used = keys_BCGP.shape[1] if self.reads_all_slots else self.num_slots + q_BSHP.shape[1]
        o_BSHP = cached_attention(q_BSHP, keys_BCGP[:, :used], values_BCGP[:, :used], self.lengths_B)
        return o_BSHP.flatten(0, 1)
