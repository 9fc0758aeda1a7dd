"""A model hub on loopback: just enough of its HTTP interface for a real client to download a small repository."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextlib.contextmanager
def fake_hub(
    repo: str, files: Mapping[str, bytes], *, gated: bool = False
) -> Iterator[tuple[str, list[str]]]:
    """Serves one repository; yields the hub's address and the list of paths that were asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, *, body: bool) -> None:
            asked.append(f"{self.command} {self.path}")
            path = self.path.split("?")[0]
            if gated and repo in path:
                headers = {
                    "X-Error-Code": "GatedRepo",
                    "X-Error-Message": f"Access to model {repo} is restricted.",
                }
                return self._send(401, b"", headers, body=body)
            if path.startswith(f"/api/models/{repo}/revision/") or path == f"/api/models/{repo}":
                return self._send(200, json.dumps(self._info()).encode(), {}, body=body)
            if path.startswith(f"/api/models/{repo}/tree/"):
                return self._send(200, json.dumps(self._tree()).encode(), {}, body=body)
            prefix = f"/{repo}/resolve/"
            if path.startswith(prefix):
                name = path.removeprefix(prefix).split("/", 1)[1]
                if name in files:
                    etag = {"ETag": f'"{hashlib.sha1(files[name], usedforsecurity=False).hexdigest()}"'}
                    return self._send(200, files[name], {**etag, "X-Repo-Commit": COMMIT}, body=body)
            return self._send(404, b"", {"X-Error-Code": "RepoNotFound"}, body=body)

        def _info(self) -> dict[str, object]:
            siblings = [{"rfilename": name, "size": len(data)} for name, data in files.items()]
            return {
                "id": repo,
                "modelId": repo,
                "sha": COMMIT,
                "siblings": siblings,
                "tags": [],
                "private": False,
            }

        def _tree(self) -> list[dict[str, object]]:
            return [
                {"type": "file", "path": name, "size": len(data), "oid": "0" * 40}
                for name, data in files.items()
            ]

        def _send(self, status: int, data: bytes, headers: Mapping[str, str], *, body: bool) -> None:
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if body:
                self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
