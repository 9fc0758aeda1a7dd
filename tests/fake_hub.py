"""A model hub on loopback: just enough of its HTTP interface for a real client to download a small repository."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """One repository's server; `asked` lists what was asked for."""

    def __init__(self, repo: str, files: Mapping[str, bytes], *, gated: bool, stalls: str | None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repo, self.files, self.gated, self.stalls = repo, files, gated, stalls
        self.asked: list[str] = []
        self.closing = threading.Event()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        self.server.asked.append(f"{self.command} {self.path}")
        status, data, headers = self._reply(self.path.split("?")[0])
        self.send_response(status)
        for key, value in {**headers, "Content-Type": "application/json", "Content-Length": str(len(data))}.items():
            self.send_header(key, value)
        self.end_headers()
        if body and self.server.stalls is not None and self.path.endswith(self.server.stalls):
            self.server.stalls = None
            self.wfile.write(data[: len(data) // 2])
            self.server.closing.wait()
        elif body:
            self.wfile.write(data)

    def _reply(self, path: str) -> tuple[int, bytes, Mapping[str, str]]:
        repo, files = self.server.repo, self.server.files
        if self.server.gated and repo in path:
            return 401, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": f"Access to model {repo} is restricted."}
        if path == f"/api/models/{repo}" or path.startswith(f"/api/models/{repo}/revision/"):
            return 200, json.dumps(self._info()).encode(), {}
        if path.startswith(f"/api/models/{repo}/tree/"):
            return 200, json.dumps(self._tree()).encode(), {}
        if path.startswith(f"/{repo}/resolve/"):
            name = path.removeprefix(f"/{repo}/resolve/").split("/", 1)[1]
            if name in files:
                etag = hashlib.sha1(files[name], usedforsecurity=False).hexdigest()
                return 200, files[name], {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}
        return 404, b"", {"X-Error-Code": "RepoNotFound"}

    def _info(self) -> dict[str, object]:
        siblings = [{"rfilename": name, "size": len(data)} for name, data in self.server.files.items()]
        repo = self.server.repo
        return {"id": repo, "modelId": repo, "sha": COMMIT, "siblings": siblings, "tags": [], "private": False}

    def _tree(self) -> list[dict[str, object]]:
        files = self.server.files.items()
        return [{"type": "file", "path": name, "size": len(data), "oid": "0" * 40} for name, data in files]

    def log_message(self, *args: object) -> None:
        pass


@contextlib.contextmanager
def fake_hub(
    repo: str, files: Mapping[str, bytes], *, gated: bool = False, stalls: str | None = None
) -> Iterator[tuple[str, list[str]]]:
    """Serves one repository; yields the hub's address and the list of paths that were asked for.

    Of the file `stalls`, the first that asks for it gets one half and then nothing.
    """
    server = Hub(repo, files, gated=gated, stalls=stalls)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", server.asked
    finally:
        server.closing.set()
        server.shutdown()
        thread.join()
        server.server_close()
