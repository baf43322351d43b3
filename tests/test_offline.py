"""The tests themselves run without a network. test_command_line.py uses the same guard for the commands."""
import os
import socket
import subprocess
import sys

import pytest

ELSEWHERE = "192.0.2.1"  # an address that belongs to nobody (RFC 5737)


@pytest.mark.parametrize("host", [ELSEWHERE, "example.com"])
def test_no_connection_leaves_this_machine(host):
    with pytest.raises(AssertionError, match="no network"):
        socket.create_connection((host, 80), timeout=1)


def test_no_connection_leaves_this_machine_from_a_command_either():
    code = f"import socket; socket.create_connection(('{ELSEWHERE}', 80), timeout=1)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8")
    assert result.returncode == 1
    assert "AssertionError: tests have no network" in result.stderr


def test_a_server_on_this_machine_can_be_reached():
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), timeout=10).close()


def test_libraries_with_sockets_of_their_own_are_told_to_stay_offline():
    assert os.environ["HF_HUB_OFFLINE"] == "1"
