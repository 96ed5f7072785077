from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stratolog.errors import Unavailable
from stratolog.local.ports import PORT_RANGE, RESERVED_S, free_ports, is_port_free

DRAW = """
import sys
from pathlib import Path
from stratolog.local.ports import free_ports
print(*(port for _ in range(20) for port in free_ports(40, Path(sys.argv[1]))))
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "ports"


def test_free_ports_are_free_and_different(file: Path) -> None:
    ports = free_ports(20, file)
    assert len(set(ports)) == 20
    assert all(port in PORT_RANGE and is_port_free(port) for port in ports)


def test_a_port_in_use_is_not_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert not is_port_free(server.getsockname()[1])


def test_too_many_ports_are_refused(file: Path) -> None:
    with pytest.raises(Unavailable, match=f"no {len(PORT_RANGE) + 1} free ports in 20000..31999"):
        free_ports(len(PORT_RANGE) + 1, file)
    assert file.read_text() == ""


def test_processes_that_draw_at_once_get_different_ports(file: Path) -> None:
    """Both draw 800 of 12,000 ports at random: without reservations, some fifty would be the same."""
    drawing = [
        subprocess.Popen([sys.executable, "-c", DRAW, str(file)], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    first, second = ([int(port) for port in process.communicate()[0].split()] for process in drawing)
    assert len(first) == len(second) == 800
    assert len({*first, *second}) == 1600


def test_reservations_end(file: Path) -> None:
    ports = free_ports(2, file)
    now = time.time()
    lines = [line.split() for line in file.read_text().splitlines()]
    assert [int(port) for port, _ in lines] == ports
    assert all(now < float(until) <= now + RESERVED_S for _, until in lines)
    file.write_text(f"{ports[0]} {now - 1}\n{ports[1]} {now + 10 * RESERVED_S}\n")  # ended; a clock that was set back
    (port,) = free_ports(1, file)
    assert [int(line.split()[0]) for line in file.read_text().splitlines()] == [port]


def test_reserved_ports_are_returned_before_none_are(file: Path) -> None:
    until = time.time() + RESERVED_S / 2
    file.parent.mkdir()
    file.write_text("".join(f"{port} {until}\n" for port in PORT_RANGE))
    assert len(set(free_ports(3, file))) == 3


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\n", b"1\n", b"one two three\n", b"20000 nan\n", b"20000 17", b"\n\n\x00"]
)
def test_any_bytes_in_the_file_are_read_over(file: Path, content: bytes) -> None:
    file.parent.mkdir()
    file.write_bytes(content)
    (port,) = free_ports(1, file)
    assert [int(line.split()[0]) for line in file.read_text().splitlines()] == [port]


def test_ports_are_returned_where_no_file_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert len(free_ports(2, tmp_path / "file" / "ports")) == 2
    assert len(free_ports(2, tmp_path)) == 2
    assert len(free_ports(2, Path("~nobody-of-this-name") / "ports")) == 2
