"""Encoding and reading in other processes."""

import multiprocessing
import os
import pickle
import signal
import subprocess
from concurrent.futures import ProcessPoolExecutor
from operator import methodcaller
from pathlib import Path

import pytest
import torch

from glmforge.data.documents.document import Document
from glmforge.data.stream import loader
from glmforge.data.stream.curriculum import Curriculum
from glmforge.data.stream.loader import Loader
from glmforge.data.stream.phase import PhaseStream
from glmforge.data.stream.plan import BatchRange
from glmforge.data.tokens import tokenize
from glmforge.data.tokens.bpe import train_tokenizer
from glmforge.data.tokens.shards import TokenShard
from glmforge.data.tokens.tokenize import tokenize_corpus
from glmforge.errors import DataError
from helpers.children import children_from_now_on
from helpers.stream_runs import stream_config

DOCUMENTS = [Document(str(i), f"document {i}: " + "words and numbers, " * (i % 7), "memory") for i in range(200)]


@pytest.fixture(scope="module")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "t"
    train_tokenizer([document.text for document in DOCUMENTS], 300, path)
    return path


def test_bytes_do_not_depend_on_the_number_of_workers(tokenizer_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(tokenize, "BATCH_CHARACTERS", 500)
    for workers in (1, 2, 3):
        tokenize_corpus(DOCUMENTS, tokenizer_dir, tmp_path / f"w{workers}", num_workers=workers)
    for suffix in ("bin", "idx", "json"):
        first = (tmp_path / f"w1.{suffix}").read_bytes()
        assert all((tmp_path / f"w{workers}.{suffix}").read_bytes() == first for workers in (2, 3))


def test_a_dead_worker_is_an_error_and_leaves_nothing(tokenizer_dir, tmp_path, monkeypatch):
    workers = children_from_now_on()

    def kill_workers(progress):
        for worker in workers():
            worker.kill()

    monkeypatch.setattr(tokenize, "BATCH_CHARACTERS", 100)
    with pytest.raises(DataError, match="an encoding process died"):
        tokenize_corpus(DOCUMENTS, tokenizer_dir, tmp_path / "s", num_workers=2, progress=kill_workers)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def make_stream(tokenizer_dir, tmp_path):
    tokenize_corpus(DOCUMENTS, tokenizer_dir, tmp_path / "s")
    shards = {"s": TokenShard(tmp_path / "s")}

    def make(packing: str) -> PhaseStream:
        phase = {"steps": 100, "seq_len": 32, "packing": packing, "fim_rate": 0.5}
        config = stream_config(shards, [phase], data={"tokenizer": str(tokenizer_dir)}, s={"code": True})
        return Curriculum(config, shards).stream(0, {})

    return make


@pytest.fixture
def stream(make_stream) -> PhaseStream:
    return make_stream("truncate")


READ = methodcaller("batch", 40, 8)


def test_a_stream_reads_the_same_in_a_spawned_process(make_stream):
    """Which gets it pickled, and maps the files itself."""
    streams = [make_stream("truncate"), make_stream("best_fit")]
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        batches = list(pool.map(READ, streams))
    for stream, batch in zip(streams, batches, strict=True):
        assert len(pickle.dumps(stream)) < 5000
        assert torch.equal(batch.ids_BS, READ(stream).ids_BS)
        assert torch.equal(batch.labels_BS, READ(stream).labels_BS)
        assert batch.document_lengths == READ(stream).document_lengths


RANGES = [BatchRange(4 * i, 4) for i in range(12)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT])
def test_a_warning_signal_to_all_processes_of_the_job(stream, number):
    """Reading goes on, because the trainer has a checkpoint to write; it is also still possible to end it."""
    started = children_from_now_on()
    batches = iter(Loader(stream, RANGES, num_workers=2))
    read = [next(batches)]
    readers = started()
    for process in readers:
        os.kill(process.pid, int(number)) if number != signal.SIGTERM else _kill_from_elsewhere(process.pid)
    read += list(batches)
    assert [batch.sample_indices[0] for batch in read] == [batch.first for batch in RANGES]
    assert [process.exitcode for process in readers] == [0, 0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT])
def test_a_warning_signal_before_a_reading_process_is_ready(stream, number, monkeypatch):
    """It may arrive between the birth of a process and the first line that the process runs of ours."""
    ready = loader._ignore_interrupts

    def warned_first(worker: int) -> None:
        os.kill(os.getpid(), number)
        ready(worker)

    monkeypatch.setattr(loader, "_ignore_interrupts", warned_first)
    read = list(Loader(stream, RANGES, num_workers=2))
    assert [batch.sample_indices[0] for batch in read] == [batch.first for batch in RANGES]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()).isdisjoint({number}), "the trainer itself still hears it"


def test_a_reading_process_heeds_its_parent(stream):
    started = children_from_now_on()
    batches = iter(Loader(stream, RANGES, num_workers=1))
    next(batches)
    (reader,) = started()
    reader.terminate()
    reader.join()
    assert reader.exitcode == 0
    batches.close()


def test_a_reading_process_that_is_killed_is_one_line(stream):
    started = children_from_now_on()
    batches = iter(Loader(stream, RANGES, num_workers=1))
    next(batches)
    (reader,) = started()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})  # torch would raise wherever this process stands
    try:
        reader.kill()
        reader.join()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    with pytest.raises(
        DataError, match=r"^data\.num_workers: DataLoader worker .*; out of memory\? Try fewer workers$"
    ):
        list(batches)


def _kill_from_elsewhere(pid: int) -> None:
    """As a cluster does it; a SIGTERM of the parent itself is obeyed."""
    subprocess.run(["kill", "-TERM", str(pid)], check=True)
