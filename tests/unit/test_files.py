"""Reading and appending touch regular files only, and never wait."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from dlperf_hpc.files import NotAFile, append_line, read_regular


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def test_a_pipe_is_neither_read_nor_appended_to(pipe: Path) -> None:
    for use in (read_regular, lambda path: append_line(path, "x")):
        with pytest.raises(NotAFile, match="named pipe"):
            use(pipe)


def test_a_socket_and_a_device_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("socket")
        with pytest.raises(NotAFile, match="socket"):
            read_regular("socket")
    with pytest.raises(NotAFile, match="device"):
        read_regular("/dev/zero")


def test_a_directory_is_told_as_one(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        read_regular(tmp_path)


def test_a_file_over_the_bound_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_regular(path, most=5) == b"12345"
    with pytest.raises(OSError, match="more than the 4 bytes"):
        read_regular(path, most=4)


def test_what_tells_no_size_is_read_to_its_end() -> None:
    assert read_regular("/proc/self/status").startswith(b"Name:")  # st_size is 0


def test_appending_does_not_follow_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("mine\n")
    link.symlink_to(target)
    with pytest.raises(NotAFile, match="link"):
        append_line(link, "planted")
    link.unlink()
    link.symlink_to(tmp_path / "absent")  # O_CREAT would make it
    with pytest.raises(NotAFile, match="link"):
        append_line(link, "planted")
    assert target.read_text() == "mine\n" and not (tmp_path / "absent").exists()
    assert read_regular(target) == b"mine\n"


def test_lines_are_added_behind_a_torn_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    append_line(path, "a")
    with path.open("a") as file:
        file.write("torn")
    append_line(path, "b\nc")
    assert path.read_text() == "a\ntorn\nb\nc\n"
