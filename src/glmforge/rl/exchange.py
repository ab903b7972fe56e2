"""Ranks tell each other of answers: a few numbers of all of them, and each answer to those that train on it.

Answers are sampled on one rank (or a tp and pp group, whose ranks sample the same) and trained on wherever there is
room: rows are dealt so that the data ranks have about as many tokens. All ranks of a data rank (tp, pp, cp) need its
rows. What is dealt where is a function of numbers that all ranks have.
"""

import heapq
import itertools
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist

from glmforge.parallel.world import World
from glmforge.rl.samples import Answer, from_bytes, to_bytes

T = TypeVar("T")


def gathered(mine: T) -> list[T]:
    """Of all ranks, by rank. For small things. Collective."""
    if not dist.is_initialized():
        return [mine]
    parts = [mine] * dist.get_world_size()
    dist.all_gather_object(parts, mine)
    return parts


def deal(sizes: Sequence[int], num_shares: int) -> list[int]:
    """The share of each of these, so that shares are about equal: the largest first, to the smallest share so far."""
    shares = [(0, share) for share in range(num_shares)]
    dealt = [0] * len(sizes)
    for place in sorted(range(len(sizes)), key=lambda place: (-sizes[place], place)):
        total, share = heapq.heappop(shares)
        dealt[place] = share
        heapq.heappush(shares, (total + sizes[place], share))
    return dealt


def send(mine: Sequence[Answer], world: World, share_of: Callable[[Answer], int]) -> list[Answer]:
    """The answers of this rank's data share, from all ranks, in ascending order. Collective.

    Args:
        mine: those that only this rank gives: of ranks that sampled the same, one gives.
        share_of: the data rank that an answer goes to.
    """
    if world.size == 1:
        return sorted(mine, key=lambda one: one.key)
    data_ranks = gathered(world.data_rank)
    parcels = {share: to_bytes([one for one in mine if share_of(one) == share]) for share in set(data_ranks)}
    contents = _all_to_all([parcels[share] for share in data_ranks], world.device)
    return sorted((one for content in contents for one in from_bytes(content)), key=lambda one: one.key)


def _all_to_all(contents: Sequence[bytes], device: torch.device) -> list[bytes]:
    """What each rank has for this one, from what this one has for each."""
    sizes = torch.tensor([len(content) for content in contents], device=device)
    incoming = torch.empty_like(sizes)
    dist.all_to_all_single(incoming, sizes)
    lengths = incoming.tolist()
    outgoing = torch.frombuffer(bytearray(b"".join(contents)), dtype=torch.uint8).to(device)
    received = torch.empty(sum(lengths), dtype=torch.uint8, device=device)
    dist.all_to_all_single(received, outgoing, lengths, sizes.tolist())
    whole = received.cpu().numpy().tobytes()
    ends = torch.tensor([0, *lengths]).cumsum(0).tolist()
    return [whole[start:end] for start, end in itertools.pairwise(ends)]
