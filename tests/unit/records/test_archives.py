"""Archives of a sweep's directory: what goes in, what comes out, and what of either is refused.

Who may read a file decides nothing when root runs the tests: `_as_user` then runs a command as the
user 65534.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from other_user import AS_NOBODY, NOBODY
from places import ROOT
from record_samples import a_run, a_sweep, ended_ok

from dlperf_hpc.cli.archive import main as archive
from dlperf_hpc.cli.report import main as report
from dlperf_hpc.cli.status import main as status
from dlperf_hpc.errors import LedgerError
from dlperf_hpc.records import archives as archives
from dlperf_hpc.records.archives import pack, unpacked

RUN = a_run()


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sweep of the local engine, ended, in a directory of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "sample"
    a_sweep(root, [RUN])
    ended_ok(root, RUN)
    return root


@pytest.fixture
def packed(sweep: Path) -> Path:
    """Its archive."""
    pack(sweep, Path("kept.zip"))
    return Path("kept.zip").absolute()


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where directories are made for what is unpacked."""
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    return place


def _as_user(words: Sequence[str | Path], at: Path) -> subprocess.CompletedProcess[str]:
    prefix = AS_NOBODY if os.getuid() == 0 else []
    return subprocess.run(
        [*prefix, sys.executable, "-m", "dlperf_hpc", *map(str, words)],
        cwd=at, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(at)},
    )  # fmt: skip


@pytest.mark.processes
def test_what_cannot_be_read_is_named_and_there_is_no_archive(sweep: Path) -> None:
    for folder in sweep.parents:
        if "pytest" in str(folder):  # its own are open to their owner alone
            folder.chmod(0o755)
    for path in (sweep.parent, sweep, *sweep.rglob("*")):
        if os.getuid() == 0:
            os.chown(path, NOBODY, NOBODY)
    closed, secret = sweep / "attempts", sweep / "more" / "x.log"
    closed.mkdir(mode=0)
    secret.parent.mkdir()
    secret.touch(0o000)
    if os.getuid() == 0:
        os.chown(closed, NOBODY, NOBODY)
    done = _as_user(["archive", sweep], sweep.parent)
    assert done.returncode == 2, done.stderr
    assert "sample/attempts: Permission denied" in done.stderr
    assert "sample/more/x.log: Permission denied" in done.stderr
    assert "no archive was written" in done.stderr and done.stdout == ""
    assert not [path for path in sweep.parent.iterdir() if "zip" in path.name]
    closed.chmod(0o700)


def test_links_pipes_and_sockets_are_left_out_and_told(sweep: Path, capsys: Any) -> None:
    key = sweep.parent / "id_rsa"
    key.write_text("PRIVATE KEY")
    (sweep / "key.log").symlink_to(key)
    (sweep / "home").symlink_to(sweep.parent)
    (sweep / "gone").symlink_to("nowhere")
    os.mkfifo(sweep / "pipe.log")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(sweep / "sock"))
        assert archive([str(sweep), "--json"]) == 0
    told = capsys.readouterr()
    out = json.loads(told.out)["left_out"]
    assert sorted(out) == [f"sample/{n}" for n in ("gone", "home", "key.log", "pipe.log", "sock")]
    assert out["sample/home"] == "is a link, and links are not followed"
    assert out["sample/pipe.log"] == "is a named pipe, not a file"
    assert len(told.err.splitlines()) == 5
    with zipfile.ZipFile("sample.zip") as made:
        assert not [name for name in made.namelist() if name.split("/")[1] in out or "key" in name]
        assert all(b"PRIVATE" not in made.read(name) for name in made.namelist())


def test_a_file_swapped_for_a_link_after_the_listing_is_not_followed(
    sweep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = sweep.parent / "id_rsa"
    key.write_text("PRIVATE KEY")
    (sweep / "a.log").write_text("harmless")
    real, calls = os.stat, []

    def swapping(path: Any, **named: Any) -> os.stat_result:
        found = real(path, **named)
        if path == "a.log":
            calls.append(path)
            if len(calls) == 2:  # after both looks, before it is opened
                (sweep / "a.log").unlink()
                (sweep / "a.log").symlink_to(key)
        return found

    monkeypatch.setattr(os, "stat", swapping)
    with pytest.raises(LedgerError, match=r"sample/a\.log: Too many levels of symbolic links"):
        pack(sweep, Path("kept.zip"))
    assert calls and not Path("kept.zip").exists()


def test_an_archive_may_lie_in_the_directory_that_it_is_of(sweep: Path) -> None:
    target = sweep / "kept.zip"
    assert pack(sweep, target).files == len(zipfile.ZipFile(target).namelist())
    assert "sample/manifest.json" in zipfile.ZipFile(target).namelist()


def test_names_that_zip_does_not_keep_are_left_out_and_dots_are_no_name(sweep: Path) -> None:
    (sweep / "a\\b.log").touch()
    Path(os.fsdecode(os.fsencode(sweep) + b"/\xff.log")).touch()
    (sweep / "old.log").touch()
    os.utime(sweep / "old.log", (0, 0))
    (sweep / "sub").mkdir()
    done = pack(sweep / "sub" / "..", Path("kept.zip"))
    assert set(done.left_out.values()) == {"has a name that zip archives do not keep"}
    assert len(done.left_out) == 2
    assert {name.split("/")[0] for name in zipfile.ZipFile("kept.zip").namelist()} == {"sample"}
    with unpacked(Path("kept.zip")) as root:
        assert (root / "manifest.json").is_file()


@pytest.mark.processes
def test_only_what_verbs_read_is_unpacked_and_it_is_read_as_the_directory(
    sweep: Path, folders: Path, capsys: Any
) -> None:
    for name in ("jobs/1_0.out", "report/runs.csv", "attempts/a.attempt1.checkpoint/x.pt"):
        (sweep / name).parent.mkdir(parents=True, exist_ok=True)
        (sweep / name).write_text("x" * 1000)
    assert status([str(sweep), "--json"]) == 0
    before = json.loads(capsys.readouterr().out)["runs"]
    pack(sweep, Path("kept.zip"))
    assert status(["kept.zip", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == before
    assert report(["kept.zip"]) == 0
    with unpacked(Path("kept.zip")) as root:
        found = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    assert found == {"manifest.json", f"{RUN.id}.log", f"{RUN.id}.json"}
    assert list(folders.iterdir()) == []


Member = tuple[str | zipfile.ZipInfo, bytes]


def _remade(packed: Path, *more: Member, compression: int = zipfile.ZIP_DEFLATED) -> Path:
    """The archive with other members added."""
    made = packed.with_name("bad.zip")
    with zipfile.ZipFile(packed) as old, zipfile.ZipFile(made, "w", compression) as new:
        for info in old.infolist():
            new.writestr(info.filename, old.read(info))
        for name, data in more:
            new.writestr(name, data)
    return made


def _link(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("member", "words"),
    [
        (("sample/../../x.log", b""), "is no plain path"),
        (("sample/./x.log", b""), "is no plain path"),
        (("sample//etc/x.log", b""), "is no plain path"),
        (("sample/a\\..\\x.log", b""), "is no plain path"),
        (("sample/" + "a/" * 200 + "x.log", b""), "is no plain path"),
        ((_link("sample/d/x.log"), b"/etc/passwd"), "is no file"),
        ((f"sample/{RUN.id}.log", b"other"), "twice"),
        (("sample/d/x.log", b"\0" * 120_000_000), "of a usual one"),
        (("sample/manifest.json/x.log", b""), "x.log"),
        (("sample/d/" + "n" * 300 + ".log", b""), "File name too long"),
    ],
)
def test_an_archive_that_leads_out_or_is_a_bomb_is_refused(
    packed: Path, folders: Path, capsys: Any, member: Member, words: str
) -> None:
    bad = _remade(packed, member)
    for verb in (status, report):
        assert verb([str(bad)]) == 2
        told = capsys.readouterr().err
        assert told.startswith(f"error: {bad}: cannot be unpacked: ") and words in told
    assert list(folders.iterdir()) == []


@pytest.mark.parametrize("top", ["..", ".", "", "\\"])
def test_a_top_that_is_no_directory_of_its_own_is_refused(
    packed: Path, folders: Path, top: str
) -> None:
    bad = packed.with_name("bad.zip")
    with zipfile.ZipFile(packed) as old, zipfile.ZipFile(bad, "w") as new:
        for info in old.infolist():
            new.writestr(info.filename.replace("sample", top, 1), old.read(info))
    with pytest.raises(LedgerError, match="no plain path"), unpacked(bad):
        pass
    assert list(folders.iterdir()) == []


def _flipped(data: bytearray, start: int, size: int) -> None:
    for place in range(start + size // 3, start + size - 8):
        data[place] ^= 0x5A


def _claims(data: bytearray, offset: int, value: bytes) -> None:
    """Another value in all headers: ``offset`` is that of the local one."""
    for mark, more in ((b"PK\3\4", 0), (b"PK\1\2", 2)):
        place = data.find(mark)
        while place >= 0:
            data[place + offset + more : place + offset + more + len(value)] = value
            place = data.find(mark, place + 4)


def _damaged_data(data: bytearray) -> None:
    with zipfile.ZipFile("bad.zip") as made:
        info = made.getinfo(f"sample/{RUN.id}.json")
    _flipped(data, info.header_offset + 30 + len(info.filename), info.compress_size)


@pytest.mark.parametrize(
    "compression", [0, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
)
@pytest.mark.parametrize(
    "damage",
    [
        _damaged_data,
        lambda data: _claims(data, 6, b"\x01\x00"),  # encrypted
        lambda data: _claims(data, 8, b"\x63\x00"),  # a compression that there is not
        lambda data: _claims(data, 14, b"\0\0\0\0"),  # the check sum
        lambda data: _claims(data, 22, b"\7\0\0\0"),  # 7 bytes, and there are more
        lambda data: _claims(data, 22, b"\0\0\0\1"),  # 16 MiB, and there are less
    ],
)
def test_a_damaged_member_is_named(
    packed: Path, folders: Path, damage: Callable[[bytearray], None], compression: int,
    capsys: Any,
) -> None:  # fmt: skip
    bad = _remade(packed, compression=compression)
    with unpacked(bad) as root:  # whatever the compression
        assert (root / f"{RUN.id}.log").stat().st_size > 100
    data = bytearray(bad.read_bytes())
    damage(data)
    bad.write_bytes(data)
    assert status([str(bad)]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"error: {bad}: cannot be unpacked: sample/") and told.count("\n") == 1
    assert list(folders.iterdir()) == []


def test_more_members_or_bytes_than_bounded_or_free_are_refused(
    packed: Path, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(archives, "MOST_MEMBERS", 2)
        with pytest.raises(LedgerError, match="more than 2 members"), unpacked(packed):
            pass
    with monkeypatch.context() as patched:
        patched.setattr(archives._Bounded, "_MOST", 10)
        with unpacked(packed) as same:
            assert same == packed  # its list of members is not even read
    full = shutil._ntuple_diskusage(100, 100, 0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    with pytest.raises(LedgerError, match="0 MiB left; set TMPDIR"), unpacked(packed):
        pass
    assert list(folders.iterdir()) == []


def test_a_zip_of_other_peoples_logs_is_none_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "logs.zip"
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("run/manifest.json", '{"name": "another tool"}')
        made.writestr("run/jobs/a.log", "x")
    with unpacked(path) as same:
        assert same == path
    with unpacked(tmp_path / "missing.zip") as same:
        assert same == tmp_path / "missing.zip"


_HELD_PACKING = """
import sys, time
from pathlib import Path
from dlperf_hpc.records import archives
def held(self, file, path):
    print(self._archive.filename, flush=True)
    time.sleep(60)
archives._Packing._copy = held
archives.pack(Path(sys.argv[1]), Path(sys.argv[2]))
"""


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_no_half_of_an_archive_stays_after_a_signal(
    sweep: Path, folders: Path, number: signal.Signals
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _HELD_PACKING, str(sweep), str(folders / "x.zip")],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT,
    ) as held:  # fmt: skip
        assert held.stdout is not None
        assert Path(held.stdout.readline().strip()).parent == folders
        held.send_signal(number)
        assert held.wait(timeout=60) != 0
    assert list(folders.iterdir()) == []


_HELD = """
import sys, time
from pathlib import Path
from dlperf_hpc.records.archives import unpacked
with unpacked(Path(sys.argv[1])) as root:
    print(root, flush=True)
    time.sleep(60)
"""


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_nothing_stays_after_a_signal(packed: Path, folders: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _HELD, str(packed)], stdout=subprocess.PIPE, text=True,
        stderr=subprocess.DEVNULL, cwd=ROOT, env={**os.environ, "TMPDIR": str(folders)},
        # Where the tests themselves run below nohup it is ignored, and that is inherited.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    ) as held:  # fmt: skip
        assert held.stdout is not None
        assert Path(held.stdout.readline().strip(), "manifest.json").is_file()
        held.send_signal(number)
        code = held.wait(timeout=60)
    assert code == (-number if number == signal.SIGINT else 128 + number)
    assert list(folders.iterdir()) == []


def test_an_archive_that_has_no_room_is_told_of_as_the_archive(
    sweep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_self: object, _file: object, _path: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(archives._Packing, "_copy", full)
    with pytest.raises(LedgerError, match=r"kept\.zip: No space left on device; no archive"):
        pack(sweep, Path("kept.zip"))
    assert not [path for path in Path().iterdir() if "zip" in path.name]
