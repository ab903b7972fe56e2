"""A rank that gives no answer, words that stand, an error that is a rank's own; the rest is shown by real runs."""

import os
import socket
from datetime import timedelta

import torch.distributed as dist

from glmforge.parallel import peers as room
from glmforge.parallel.peers import Peers
from helpers.distributed import run_ranks

BROKEN = "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1234"
PATIENCE = timedelta(seconds=60)


def make_peers(size: int) -> tuple[Peers, dist.Store]:
    rank = int(os.environ["RANK"])

    def store(serves: bool) -> dist.Store:
        port = int(os.environ["MASTER_PORT"])
        return dist.TCPStore("127.0.0.1", port, is_master=serves, timeout=PATIENCE, wait_for_workers=False)

    own = store(rank == 0)
    peers = Peers(own, rank, size, reconnect=lambda: store(False), kept_by_rank_zero=False)
    peers.introduce()
    return peers, own


def rank_silent() -> str:
    """Rank 2 gives no answer, though it lives: it hangs."""
    room.GRACE_S = 1.0
    peers, store = make_peers(3)
    lost = "" if peers.rank == 2 else str(peers.explain(RuntimeError(BROKEN)))
    store.add("asked", int(peers.rank != 2))
    while peers.rank == 0 and store.add("asked", 0) < 2:  # it keeps the store for the others
        pass
    return lost


def rank_with_words() -> tuple[object, str]:
    """What a rank is told of its own error, and of a broken connection after rank 0 has left words."""
    peers, store = make_peers(2)
    if peers.rank == 0:
        peers.say_last_words("shard.bin: is damaged;\nrestore it")
        store.wait(["asked"], PATIENCE)
        return None, ""
    store.wait(["words"], PATIENCE)
    peers.say_last_words("later words")
    told = peers.explain(ValueError("a defect")), str(peers.explain(RuntimeError(BROKEN)))
    store.set("asked", "1")
    return told


def test_a_rank_that_gives_no_answer_is_named() -> None:
    first, second, _ = run_ranks(rank_silent, 3, init_group=False)
    for rank, line in enumerate((first, second)):
        assert line.startswith(f"rank 2 on {socket.gethostname()} (process ")
        assert f"gave no answer: lost with the machine, or hanging; rank {rank} on " in line


def test_the_first_words_stand_and_an_own_defect_is_an_own_defect() -> None:
    own, told = run_ranks(rank_with_words, 2, init_group=False)[1]
    assert own is None
    assert told.startswith(f"rank 0 on {socket.gethostname()} (process ")
    assert "failed first: shard.bin: is damaged; restore it (its log: " in told
    assert told.count("\n") == 0


def rank_whose_store_breaks_first() -> str:
    """What rank 1 says when the store of rank 0 has gone and the kernel does not yet call rank 0 dead."""
    peers, store = make_peers(2)
    store.wait(["who/0", "who/1"], PATIENCE)
    if peers.rank == 0:
        store.wait(["met"], PATIENCE)
        return ""
    peers._kept_by_rank_zero = True
    peers.meet()
    looks = iter([True, True, False])
    room.is_alive = lambda process: next(looks, False)
    said = str(peers._without_store(peers._just_ended([])))
    store.set("met", "1")
    return said


def test_a_rank_that_is_about_to_end_is_not_called_unreachable() -> None:
    said = run_ranks(rank_whose_store_breaks_first, 2, init_group=False)[1]
    assert "it exited without a message" in said
