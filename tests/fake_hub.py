"""A model hub of one repository on 127.0.0.1, as far as `huggingface_hub` needs one. It counts requests and can break off in mid-file."""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class FakeHub:
    """Serves the files of `directory` as `repo` at commit `sha`. 
    `gone`: shards of which not a byte is sent. `cut`: break off each first transfer of a shard after this many bytes.
    """

    def __init__(self, directory: Path, repo: str, sha: str):
        self.files = {f.name: f.read_bytes() for f in directory.iterdir()}
        self.repo, self.sha = repo, sha
        self.asked: list[str] = []
        self.sent: dict[str, int] = {}
        self.gone: set[str] = set()
        self.cut: int | None = None
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_HEAD(self):
                hub.answer(self, body=False)

            def do_GET(self):
                hub.answer(self, body=True)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def answer(self, to: BaseHTTPRequestHandler, *, body: bool) -> None:
        path = to.path.split("?")[0]
        self.asked.append(path)
        name = path.rsplit("/", 1)[1]
        if path == f"/api/models/{self.repo}/tree/{self.sha}":
            rows = [{"type": "file", "path": n, "size": len(b), "oid": hashlib.sha1(b).hexdigest()} for n, b in self.files.items()]
            self.reply(to, json.dumps(rows).encode(), {"Content-Type": "application/json"}, body=body)
        elif path == f"/api/models/{self.repo}/revision/main":
            self.reply(to, json.dumps({"id": self.repo, "sha": self.sha, "siblings": []}).encode(), {"Content-Type": "application/json"}, body=body)
        elif path == f"/{self.repo}/resolve/{self.sha}/{name}" and name in self.files:
            data, start = self.files[name], 0
            if ranged := to.headers.get("Range"):
                start = int(ranged.removeprefix("bytes=").split("-")[0])
            head = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": self.sha, "Accept-Ranges": "bytes"}
            if start:
                head["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            self.reply(to, data[start:], head, body=body, status=206 if start else 200, name=name)
        else:
            self.reply(to, b"{}", {"X-Error-Code": "EntryNotFound"}, body=body, status=404)

    def reply(self, to, data: bytes, head: dict, *, body: bool, status: int = 200, name: str = "") -> None:
        to.send_response(status)
        for key, value in {**head, "Content-Length": str(len(data))}.items():
            to.send_header(key, value)
        to.end_headers()
        if not body:
            return
        if name in self.gone or (self.cut is not None and name.endswith(".safetensors") and name not in self.sent):
            data = b"" if name in self.gone else data[: self.cut]
            to.close_connection = True
        self.sent[name] = self.sent.get(name, 0) + len(data)
        to.wfile.write(data)
        to.wfile.flush()
        if to.close_connection:
            to.connection.shutdown(2)
