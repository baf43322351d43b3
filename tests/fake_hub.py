"""A server on 127.0.0.1 that answers like the Hugging Face hub, and misbehaves as a test tells it to."""

import contextlib
import hashlib
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FakeHub:
    """files: {path: bytes}; faults: {path: [what to do at the first request, at the second, ...]}, then all is well.

    A fault is a status to answer, or (status, headers), or one of: "cut" (closes half way), "cut without length",
    "ignore range" (answers 200 to a Range), "wrong range" (206 from elsewhere), "without length", "chunked", "gzip",
    "web page", "web page as binary", "other bytes", "stall" (half, then nothing), "hold" (half, and the rest when
    `go` is set), "slowly", "redirect" (with X-Linked-Size and -Etag).
    requests: [(path, headers)] as they came. half_way: set when "stall" or "hold" have sent half. pieces, pause: how
    many pieces "slowly" makes, and the seconds after each.
    """

    def __init__(self):
        self.files, self.faults, self.requests = {}, {}, []
        self.pieces, self.pause = 10, 0.03
        self.half_way, self.go = threading.Event(), threading.Event()
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                hub.requests.append((self.path, dict(self.headers)))
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    hub.answer(self)

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *error):
        self.server.shutdown()
        self.server.server_close()

    def add_model(self, repo, files):
        for name, data in files.items():
            self.files[f"/{repo}/resolve/main/{name}"] = data if isinstance(data, bytes) else data.encode("utf-8")

    def fault(self, path, *what):
        self.faults[path] = list(what)

    def ranges(self, name):
        """The Range header of each request for files of this name."""
        return [headers.get("Range") for path, headers in self.requests if path.endswith(name)]

    def answer(self, request):
        path = request.path.removeprefix("/cdn")
        faults = self.faults.get(path, [])
        fault = faults.pop(0) if faults else None
        data = self.files.get(path)
        if fault is None and data is None:
            fault = 404
        if isinstance(fault, (int, tuple)):
            status, headers = fault if isinstance(fault, tuple) else (fault, {})
            return self.send(request, status, b"<html>no</html>", {"Content-Type": "text/html", **headers})
        if fault == "redirect":
            etag = f'"{hashlib.sha256(data).hexdigest()}"'
            headers = {"Location": f"/cdn{path}", "X-Linked-Size": str(len(data)), "X-Linked-Etag": etag}
            return self.send(request, 302, b"", headers)
        if fault == "web page":
            return self.send(
                request, 200, b"<!DOCTYPE html><html>Sign in</html>", {"Content-Type": "text/html; charset=utf-8"}
            )
        if fault == "web page as binary":
            return self.send(request, 200, b"\n<HTML>Sign in</HTML>" + b" " * len(data), {})
        if fault == "other bytes":
            data = bytes(len(data))

        start, status, headers = 0, 200, {"Content-Type": "application/octet-stream"}
        if request.headers.get("Range") and fault != "ignore range":
            start, status = int(request.headers["Range"].removeprefix("bytes=").removesuffix("-")), 206
            if fault == "wrong range":
                start = 1
            if start >= len(data):
                return self.send(request, 416, b"", {"Content-Range": f"bytes */{len(data)}"})
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        data = data[start:]
        if fault == "gzip":
            headers["Content-Encoding"] = "gzip"
        if fault == "chunked":
            headers["Transfer-Encoding"] = "chunked"
        elif fault not in ("without length", "cut without length"):
            headers["Content-Length"] = str(len(data))
        half = len(data) // 2 if fault in ("cut", "cut without length", "stall", "hold") else len(data)
        request.send_response(status)
        for key, value in headers.items():
            request.send_header(key, value)
        request.send_header("Connection", "close")
        request.end_headers()
        if fault == "chunked":
            for i in range(0, len(data), 1000):
                chunk = data[i : i + 1000]
                request.wfile.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
            request.wfile.write(b"0\r\n\r\n")
        elif fault == "slowly":
            size = len(data) // self.pieces + 1
            for i in range(0, len(data), size):
                request.wfile.write(data[i : i + size])
                request.wfile.flush()
                time.sleep(self.pause)
        else:
            request.wfile.write(data[:half])
        if fault in ("stall", "hold"):
            request.wfile.flush()
            self.half_way.set()
        if fault == "stall":
            request.connection.recv(1)  # nothing comes, until the other side has enough
        elif fault == "hold":
            self.go.wait(60)
            request.wfile.write(data[half:])
        request.close_connection = True

    def send(self, request, status, body, headers):
        request.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body)), "Connection": "close"}.items():
            request.send_header(key, value)
        request.end_headers()
        request.wfile.write(body)
        request.close_connection = True
