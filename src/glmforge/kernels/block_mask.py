"""FlexAttention's block mask of queries that each see one unbroken run of keys.

Causal attention inside packed documents is such a mask: a query sees the keys from its document's first one to its own.
`torch.nn.attention.flex_attention.create_block_mask` would evaluate the mask for every query and key first, which for
131072 tokens are 16 GiB of booleans. Which blocks of 128 x 128 hold anything, and which are visible throughout, follows
from the runs' ends by counting; the largest tensors made here have one number per pair of blocks (8 MiB at 131072
tokens), on the device and without waiting for it.

Shapes: Q queries in q blocks, K keys in k blocks.
"""

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

BLOCK = 128
"""FlexAttention's default, which its kernels are tuned for."""


def interval_block_mask(first_Q: Tensor, last_Q: Tensor, num_keys: int) -> BlockMask:
    """The mask under which query i sees the keys first_Q[i] to last_Q[i], the last one included.

    Args:
        first_Q, last_Q: int64, 0 <= first <= last < num_keys.
    """

    def visible(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (first_Q[query] <= key) & (key <= last_Q[query])

    num_blocks = -(-len(first_Q) // BLOCK), -(-num_keys // BLOCK)
    some_qk, whole_qk = _blocks_with_some(first_Q, last_Q, num_blocks), _whole_blocks(first_Q, last_Q, num_blocks)
    return BlockMask.from_kv_blocks(
        *_ordered(some_qk & ~whole_qk),
        *_ordered(whole_qk),
        BLOCK_SIZE=BLOCK,
        mask_mod=visible,
        seq_lengths=(len(first_Q), num_keys),
    )


def _blocks_with_some(first_Q: Tensor, last_Q: Tensor, num_blocks: tuple[int, int]) -> Tensor:
    """bool [q, k]: whether any query of the one block sees any key of the other.

    Each query adds 1 at the first block of keys that it sees and takes it away behind the last; what a running sum
    over the blocks of keys finds is the number of queries that see something there.
    """
    num_query_blocks, num_key_blocks = num_blocks
    steps_qk = first_Q.new_zeros(num_query_blocks, num_key_blocks + 1, dtype=torch.int32)
    row_Q = torch.arange(len(first_Q), device=first_Q.device) // BLOCK * (num_key_blocks + 1)
    ones_Q = torch.ones_like(first_Q, dtype=torch.int32)
    steps_qk.view(-1).scatter_add_(0, row_Q + first_Q // BLOCK, ones_Q)
    steps_qk.view(-1).scatter_add_(0, row_Q + last_Q // BLOCK + 1, -ones_Q)
    return steps_qk.cumsum(1)[:, :-1] > 0


def _whole_blocks(first_Q: Tensor, last_Q: Tensor, num_blocks: tuple[int, int]) -> Tensor:
    """bool [q, k]: whether every query of the one block sees every key of the other; never so for an incomplete one."""
    num_query_blocks, num_key_blocks = num_blocks
    num_complete = len(first_Q) // BLOCK
    begin_k = torch.arange(num_key_blocks, device=first_Q.device) * BLOCK
    latest_first_q = first_Q[: num_complete * BLOCK].view(-1, BLOCK).amax(1, keepdim=True)
    earliest_last_q = last_Q[: num_complete * BLOCK].view(-1, BLOCK).amin(1, keepdim=True)
    whole_qk = torch.zeros(num_query_blocks, num_key_blocks, dtype=torch.bool, device=first_Q.device)
    whole_qk[:num_complete] = (latest_first_q <= begin_k) & (begin_k + BLOCK - 1 <= earliest_last_q)
    return whole_qk


def _ordered(blocks_qk: Tensor) -> tuple[Tensor, Tensor]:
    """As `BlockMask` needs them for one batch and head: how many blocks of keys each block of queries has, int32
    [1, 1, q], and all blocks of keys with these first, int32 [1, 1, q, k]."""
    counts_q = blocks_qk.sum(1, dtype=torch.int32)
    order_qk = blocks_qk.to(torch.uint8).argsort(dim=1, descending=True, stable=True).to(torch.int32)
    return counts_q[None, None], order_qk[None, None]
