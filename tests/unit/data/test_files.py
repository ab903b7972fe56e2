"""What the operating system refuses, told with what helps."""

import errno
import os

import pytest

from glmforge.data.files import (
    discard_partial,
    disk_errors,
    open_partial,
    partial_path,
    publish,
    refuse_unwritable,
    write_whole,
)
from glmforge.errors import DataError


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (errno.ENOSPC, "free some space or choose another path"),
        (errno.EDQUOT, "free some of your quota"),
        (errno.EACCES, "fix its permissions"),
        (errno.EPERM, "fix its permissions"),
        (errno.EROFS, "remount it writable"),
        (errno.ENOENT, "a file or directory was removed meanwhile"),
        (errno.ENOTDIR, "a file is in the way of a directory"),
        (errno.EXDEV, "choose another path"),
    ],
)
def test_advice_fits_the_refusal(tmp_path, code, advice):
    path = tmp_path / "corpus"
    with pytest.raises(DataError) as refused, disk_errors(path):
        raise OSError(code, os.strerror(code), str(path) + ".partial")
    assert str(refused.value).startswith(f"{path}: cannot be written ({os.strerror(code)}): {advice}")
    assert ("free some" in str(refused.value)) == (code in (errno.ENOSPC, errno.EDQUOT))


def test_another_file_that_is_refused_is_named(tmp_path):
    said = r"out: cannot be written \(.*/gone: No such file or directory\): a file or directory was removed meanwhile"
    with pytest.raises(DataError, match=said), disk_errors(tmp_path / "out"):
        (tmp_path / "gone").read_bytes()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("file", "file: already exists; choose another name, or pass"),
        ("file/a/b", r"file/a/b: cannot be written \(.*file is a file\)"),
        ("new/a", r"new/a: cannot be written \(no permission in "),
    ],
)
def test_what_could_not_be_written_is_told_before_the_work(tmp_path, monkeypatch, name, message):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(os, "access", lambda *_: False)  # tests may run as root
    with pytest.raises(DataError, match=message):
        refuse_unwritable(tmp_path / name, overwrite=False)


def test_what_can_be_written_is_left_alone(tmp_path):
    (tmp_path / "file").write_text("")
    refuse_unwritable(tmp_path / "file", overwrite=True)
    refuse_unwritable(tmp_path / "new" / "a", overwrite=False)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    with pytest.raises(DataError, match="is a directory"):
        refuse_unwritable(tmp_path, overwrite=True)


def test_a_file_where_a_directory_is_to_be(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"file/a: cannot be written"):
        write_whole(tmp_path / "file" / "a", b"")


def test_a_name_that_is_too_long(tmp_path):
    with pytest.raises(DataError, match=r"cannot be written \(File name too long\): choose a shorter name"):
        refuse_unwritable(tmp_path / ("n" * 300), overwrite=False)


def test_one_process_at_a_time_writes_a_file(tmp_path):
    path = tmp_path / "a"
    partial_path(path).write_text("of a process that was killed, and long")
    with open_partial(path) as first:
        first.write(b"whole")
        with pytest.raises(DataError, match="another process is writing it"):
            open_partial(path)
        first.flush()
        publish(path)
        with open_partial(path) as second:  # the name is free again
            second.write(b"next")
            second.flush()
            assert path.read_bytes() == b"whole"
            publish(path)
    discard_partial(path)
    assert path.read_bytes() == b"next"
