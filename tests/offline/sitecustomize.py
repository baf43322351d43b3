"""Python runs this file at its start where this folder is on PYTHONPATH, as conftest.py sees to: no way to the network.

Connections to this machine itself are allowed, for the servers that tests start.
"""
import sys

HERE = ("127.0.0.1", "::1", "localhost", "", None)
WITH_HOST_FIRST = ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr")


def refuse(event, args, here=HERE, with_host_first=WITH_HOST_FIRST):
    """An audit hook: Python calls it before it connects, sends or looks up a name. What it raises ends the call."""
    if event in ("socket.connect", "socket.sendto"):
        address = args[1]
        host = address[0] if isinstance(address, tuple) else None  # a Unix socket's address is a path
    elif event in with_host_first:
        host = args[0]
    else:
        return
    host = host.decode() if isinstance(host, bytes) else host
    if host not in here:
        # No OSError: code that lives with a missing network must not live with this.
        raise AssertionError(f"tests have no network, but something asks for {host!r}")


sys.addaudithook(refuse)
