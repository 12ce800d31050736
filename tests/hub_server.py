"""A Hugging Face Hub on 127.0.0.1, in memory: the HTTP calls that huggingface_hub makes to share and load a model,
or a Space.

    with HubServer({"hf_token": "user"}) as hub:
        subprocess.run(…, env={**os.environ, **hub.environment(tmp_path / "home"), "HF_TOKEN": "hf_token"})
        hub.repos["user/name"].files()["config.json"].content

Large files go to and come from a second port, as the real ones do to a storage that must not see the token. Everything
that was asked for is in `requests`; what was sent, in `sent`.
"""

import base64
import hashlib
import json
import re
import socket
import struct
import threading
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

# What a new repository on the Hub holds, less the many other patterns.
GIT_ATTRIBUTES = b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n*.bin filter=lfs diff=lfs merge=lfs -text\n"
# Small, so that listings of a few files have several pages and weights of a small model several parts.
PAGE_SIZE, PART_SIZE = 5, 20_000
LICENSES = {"apache-2.0", "mit", "cc-by-4.0", "other"}


def git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass(frozen=True)
class File:
    """A file of a commit; of a large one, git has only a pointer."""

    content: bytes
    is_large: bool

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def pointer(self) -> bytes:
        text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {len(self.content)}\n"
        return text.encode()

    @property
    def git_id(self) -> str:
        return git_hash(self.pointer if self.is_large else self.content)

    @property
    def etag(self) -> str:
        return self.sha256 if self.is_large else self.git_id


@dataclass
class Repo:
    """Commits, oldest first, and the branches that point to them. The name of a Space begins with `spaces/`."""

    name: str
    private: bool
    commits: dict[str, dict[str, File]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    sdk: str | None = None  # of a Space

    @property
    def owner(self) -> str:
        return self.name.split("/")[-2]

    def commit(self, branch: str, files: dict[str, File], message: str) -> str:
        listing = json.dumps([len(self.commits), branch, message, sorted((k, v.git_id) for k, v in files.items())])
        oid = hashlib.sha1(listing.encode()).hexdigest()
        self.commits[oid], self.branches[branch] = files, oid
        self.messages.append(message)
        return oid

    def find(self, revision: str) -> str | None:
        """The commit of a branch, or one named by its hash."""
        return self.branches.get(revision) or (revision if revision in self.commits else None)

    def files(self, revision: str = "main") -> dict[str, File]:
        return self.commits[self.find(revision) or ""]


class Refused(Exception):
    """An answer other than success."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        self.status, self.message, self.code = status, message, code


class HubServer:
    """The server and all that it stores. `tokens` names the user of each token."""

    def __init__(self, tokens: dict[str, str]) -> None:
        self.tokens = tokens
        self.repos: dict[str, Repo] = {}
        self.large: dict[str, bytes] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        self.requests: list[str] = []
        self.sent: list[str] = []  # paths of files whose content came
        self.sent_bytes = 0
        # How often to break the connection: "lfs" and "commit" in the middle of what is sent, "answer" after a commit.
        self.drop = {"lfs": 0, "commit": 0, "answer": 0}
        self.lock = threading.RLock()
        self.servers = [
            ThreadingHTTPServer(("127.0.0.1", 0), self._handler(kind)) for kind in (HubCalls, StorageCalls)
        ]

    def _handler(self, kind: type["Calls"]) -> type["Calls"]:
        return type(kind.__name__, (kind,), {"hub": self})

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.servers[0].server_port}"

    @property
    def storage(self) -> str:
        return f"http://127.0.0.1:{self.servers[1].server_port}"

    def environment(self, home: Path) -> dict[str, str]:
        """What makes a new process take this server for the Hub, with its own cache and without Xet."""
        return {
            "HF_ENDPOINT": self.endpoint,
            "HF_HOME": str(home),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_OFFLINE": "0",
            "NO_PROXY": "127.0.0.1",
        }

    def __enter__(self) -> "HubServer":
        for server in self.servers:
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        for server in self.servers:
            server.shutdown()
            server.server_close()

    def forget_counts(self) -> None:
        self.requests.clear()
        self.sent.clear()
        self.sent_bytes = 0

    def breaks(self, what: str) -> bool:
        """Whether the connection is to break now."""
        with self.lock:
            due = self.drop[what] > 0
            self.drop[what] -= due
            return due


class Calls(BaseHTTPRequestHandler):
    """What the calls to the Hub and to its storage share."""

    hub: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._serve()

    do_HEAD = do_POST = do_PUT = do_GET

    def _serve(self) -> None:
        self.path, _, query = self.path.partition("?")
        self.query = {name: values[-1] for name, values in parse_qs(query).items()}
        self.is_read = False
        with self.hub.lock:
            self.hub.requests.append(f"{self.command} {unquote(self.path)}")
        try:
            self.answer()
        except Refused as refused:
            headers = {"X-Error-Message": refused.message}
            if refused.code:
                headers["X-Error-Code"] = refused.code
            self.send(refused.status, {"error": refused.message}, headers)

    def answer(self) -> None:
        raise NotImplementedError

    def _chunks(self, size: int = 1 << 16) -> Any:
        """What is sent, as it comes, with a length or in chunks."""
        self.is_read = True
        if self.headers.get("Transfer-Encoding") == "chunked":
            while length := int(self.rfile.readline().split(b";")[0], 16):
                yield self.rfile.read(length)
                self.rfile.readline()
            self.rfile.readline()
            return
        left = int(self.headers.get("Content-Length") or 0)
        while left:
            block = self.rfile.read(min(size, left))
            if not block:
                return
            left -= len(block)
            yield block

    def body(self) -> bytes:
        return b"".join(self._chunks())

    def json_body(self) -> Any:
        return json.loads(self.body() or b"{}")

    def break_off(self) -> None:
        """Takes the first bytes, unless all were taken, and is gone."""
        if not self.is_read:
            next(iter(self._chunks(100)), None)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.rfile.close()
        self.connection.close()

    def send(self, status: int, content: Any = b"", headers: dict[str, str] | None = None) -> None:
        if not self.is_read:
            self.body()  # else it would be taken for the next request
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if not isinstance(content, bytes):
            self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


class StorageCalls(Calls):
    """Large files: `PUT /oid`, `PUT /oid?part=1` and `GET /oid`. Whoever has the address may use it."""

    def answer(self) -> None:
        oid = self.path.strip("/")
        if "Authorization" in self.headers:
            raise Refused(HTTPStatus.BAD_REQUEST, "the storage must not see a token")
        if self.command == "GET":
            self.send(HTTPStatus.OK, self.hub.large[oid], {"ETag": f'"{oid}"'})
            return
        if self.hub.breaks("lfs"):
            self.break_off()
            return
        content = self.body()
        with self.hub.lock:
            self.hub.sent_bytes += len(content)
            if "part" in self.query:
                self.hub.parts.setdefault(oid, {})[int(self.query["part"])] = content
            else:
                self.hub.large[oid] = content
        self.send(HTTPStatus.OK, headers={"ETag": f'"{hashlib.md5(content).hexdigest()}"'})


class HubCalls(Calls):
    """The API, the large files' batches, and the files of repositories."""

    def answer(self) -> None:
        path, hub = unquote(self.path), self.hub
        user = self._user()
        if path == "/api/whoami-v2":
            if user is None:
                raise Refused(HTTPStatus.UNAUTHORIZED, "Invalid username or password.")
            self.send(HTTPStatus.OK, {"type": "user", "name": user, "orgs": [], "auth": {"type": "access_token"}})
        elif path == "/api/validate-yaml":
            errors = card_errors(self.json_body()["content"])
            answer = {"errors": [{"message": error} for error in errors], "warnings": []}
            self.send(HTTPStatus.BAD_REQUEST if errors else HTTPStatus.OK, answer)
        elif path == "/api/repos/create":
            self._create(user)
        elif found := re.fullmatch(r"/((?:spaces/)?[^/]+/[^/]+)\.git/info/lfs/objects/(batch|verify|complete)", path):
            with hub.lock:
                if found[2] == "complete":  # the client sends no token, as the real address is a signed one
                    self._lfs_complete()
                elif found[2] == "batch":
                    self._lfs_batch(self._writable(found[1], user))
                else:
                    self._writable(found[1], user)
                    self._lfs_verify()
        elif found := re.fullmatch(r"/api/(models|spaces)/([^/]+/[^/]+)(?:/([a-z-]+)(?:/(.+))?)?", path):
            name = found[2] if found[1] == "models" else f"spaces/{found[2]}"
            with hub.lock:
                self._api(name, found[3] or "revision", found[4] or "", user)
        elif found := re.fullmatch(r"/((?:spaces/)?[^/]+/[^/]+)/resolve/(.+)", path):
            self._resolve(self._readable(found[1], user), found[2])
        else:
            raise Refused(HTTPStatus.NOT_FOUND, f"this server knows no {self.command} {path}")

    def _user(self) -> str | None:
        """Whose token it is, or None without one."""
        header = self.headers.get("Authorization")
        if header is None:
            return None
        if (user := self.hub.tokens.get(header.removeprefix("Bearer "))) is None:
            raise Refused(HTTPStatus.UNAUTHORIZED, "Invalid credentials in Authorization header")
        return user

    def _readable(self, name: str, user: str | None) -> Repo:
        repo = self.hub.repos.get(name)
        if repo is None or (repo.private and user != repo.owner):
            status = HTTPStatus.UNAUTHORIZED if user is None else HTTPStatus.NOT_FOUND
            raise Refused(status, "Repository not found", "RepoNotFound")
        return repo

    def _writable(self, name: str, user: str | None) -> Repo:
        repo = self._readable(name, user)
        if user != repo.owner:
            raise Refused(HTTPStatus.FORBIDDEN, f"You don't have the rights to write to {name}")
        return repo

    def _commit_of(self, repo: Repo, revision: str) -> str:
        if (commit := repo.find(revision)) is None:
            raise Refused(HTTPStatus.NOT_FOUND, f"Invalid rev id: {revision}", "RevisionNotFound")
        return commit

    def _split(self, repo: Repo, rest: str) -> tuple[str, str]:
        """The commit and the path of `revision/path`, where both may have slashes."""
        for place in [*(found.start() for found in re.finditer("/", rest)), len(rest)]:
            if (commit := repo.find(rest[:place])) is not None:
                return commit, rest[place + 1 :]
        raise Refused(HTTPStatus.NOT_FOUND, f"Invalid rev id: {rest}", "RevisionNotFound")

    def _create(self, user: str | None) -> None:
        asked = self.json_body()
        owner = asked.get("organization") or user
        if user is None:
            raise Refused(HTTPStatus.UNAUTHORIZED, "Invalid username or password.")
        if owner != user:
            raise Refused(
                HTTPStatus.FORBIDDEN, f"You don't have the rights to create a model under the namespace {owner}"
            )
        sdk = asked.get("sdk")
        if (asked.get("type") == "space") != (sdk is not None):
            raise Refused(HTTPStatus.BAD_REQUEST, "a Space has an sdk, and nothing else has")
        name = f"{'spaces/' if sdk else ''}{owner}/{asked['name']}"
        answer = {"url": f"{self.hub.endpoint}/{name}", "name": name, "id": name}
        with self.hub.lock:
            if name in self.hub.repos:
                self.send(HTTPStatus.CONFLICT, {**answer, "error": "You already created this model repo"})
                return
            self.hub.repos[name] = repo = Repo(name, asked.get("visibility") == "private", sdk=sdk)
            repo.commit("main", {".gitattributes": File(GIT_ATTRIBUTES, False)}, "initial commit")
        self.send(HTTPStatus.OK, answer)

    def _api(self, name: str, what: str, rest: str, user: str | None) -> None:
        repo = self._readable(name, user)
        if what == "revision":
            commit = self._commit_of(repo, rest or "main")
            siblings = [{"rfilename": path} for path in sorted(repo.commits[commit])]
            about = {"id": name, "modelId": name, "author": repo.owner, "sha": commit, "private": repo.private}
            self.send(HTTPStatus.OK, {**about, "tags": [], "downloads": 0, "likes": 0, "siblings": siblings})
        elif what == "refs":
            branches = [{"name": k, "ref": f"refs/heads/{k}", "targetCommit": v} for k, v in repo.branches.items()]
            self.send(HTTPStatus.OK, {"branches": branches, "converts": [], "tags": [], "pullRequests": []})
        elif what == "branch":
            self._writable(name, user)
            if rest in repo.branches:
                raise Refused(HTTPStatus.CONFLICT, f"Reference {rest} already exists")
            repo.branches[rest] = self._commit_of(repo, self.json_body().get("startingPoint") or "main")
            self.send(HTTPStatus.OK)
        elif what == "tree":
            self._tree(repo, rest)
        elif what == "preupload":
            self._preupload(self._writable(name, user), rest)
        elif what == "commit":
            self._commit(self._writable(name, user), rest)
        else:
            raise Refused(HTTPStatus.NOT_FOUND, f"this server knows no {what} of a repository")

    def _tree(self, repo: Repo, rest: str) -> None:
        """A page of the files at a revision, and the address of the next. No folder has any here."""
        commit, folder = self._split(repo, rest)
        if folder:
            raise Refused(HTTPStatus.NOT_FOUND, f"{folder} does not exist on {commit}", "EntryNotFound")
        files = repo.commits[commit]
        rows: list[dict[str, Any]] = []
        for path, file in sorted(files.items()):
            row = {"type": "file", "path": path, "size": len(file.content), "oid": file.git_id}
            if file.is_large:
                row["lfs"] = {"oid": file.sha256, "size": len(file.content), "pointerSize": len(file.pointer)}
            rows.append(row)
        start = int(self.query.get("cursor", 0))
        headers = {}
        if start + PAGE_SIZE < len(rows):
            address = f"{self.hub.endpoint}{urlsplit(self.path).path}?recursive=True&cursor={start + PAGE_SIZE}"
            headers["Link"] = f'<{address}>; rel="next"'
        self.send(HTTPStatus.OK, rows[start : start + PAGE_SIZE], headers)

    def _preupload(self, repo: Repo, revision: str) -> None:
        """Which files are to be sent as large ones, and what the repository has under their names."""
        had = repo.commits[self._commit_of(repo, revision)]
        files = []
        for asked in self.json_body()["files"]:
            is_large = asked["path"].endswith((".safetensors", ".bin")) or b"\0" in base64.b64decode(asked["sample"])
            old = had.get(asked["path"])
            mode = {"uploadMode": "lfs" if is_large else "regular", "shouldIgnore": False}
            files.append({"path": asked["path"], **mode, "oid": old.etag if old else None})
        self.send(HTTPStatus.OK, {"files": files})

    def _lfs_batch(self, repo: Repo) -> None:
        """Where each large file goes: one above the size of a part in parts, one that is there already nowhere."""
        objects = []
        for asked in self.json_body()["objects"]:
            oid, size = asked["oid"], asked["size"]
            here, base = f"{self.hub.storage}/{oid}", f"{self.hub.endpoint}/{repo.name}.git/info/lfs/objects"
            answer: dict[str, Any] = {"oid": oid, "size": size}
            if oid not in self.hub.large:
                upload: dict[str, Any] = {"href": here}
                if size > PART_SIZE:
                    numbers = range(1, -(-size // PART_SIZE) + 1)
                    parts = {str(number): f"{here}?part={number}" for number in numbers}
                    upload = {"href": f"{base}/complete", "header": {"chunk_size": str(PART_SIZE), **parts}}
                answer["actions"] = {"upload": upload, "verify": {"href": f"{base}/verify"}}
            objects.append(answer)
        self.send(HTTPStatus.OK, {"transfer": "multipart", "objects": objects})

    def _lfs_complete(self) -> None:
        asked = self.json_body()
        parts = self.hub.parts.pop(asked["oid"])
        if [part["partNumber"] for part in asked["parts"]] != sorted(parts):
            raise Refused(HTTPStatus.BAD_REQUEST, "parts are missing")
        self.hub.large[asked["oid"]] = b"".join(parts[number] for number in sorted(parts))
        self.send(HTTPStatus.OK)

    def _lfs_verify(self) -> None:
        asked = self.json_body()
        content = self.hub.large.get(asked["oid"], b"")
        if hashlib.sha256(content).hexdigest() != asked["oid"] or len(content) != asked["size"]:
            raise Refused(HTTPStatus.BAD_REQUEST, "what was sent is not what was announced")
        self.send(HTTPStatus.OK)

    def _commit(self, repo: Repo, branch: str) -> None:
        """All the changes of a commit, or none."""
        if self.hub.breaks("commit"):
            self.break_off()
            return
        if branch not in repo.branches:
            raise Refused(HTTPStatus.NOT_FOUND, f"Invalid rev id: {branch}", "RevisionNotFound")
        body = self.body()
        header, *changes = (json.loads(line) for line in body.splitlines())
        if header["value"].get("parentCommit", repo.branches[branch]) != repo.branches[branch]:
            raise Refused(HTTPStatus.PRECONDITION_FAILED, "A commit has happened since. Please refresh and try again.")
        files, sent = dict(repo.files(branch)), []
        for change in changes:
            key, value = change["key"], change["value"]
            if key == "file":
                files[value["path"]] = File(base64.b64decode(value["content"]), is_large=False)
            elif key == "lfsFile":
                if value["oid"] not in self.hub.large:
                    raise Refused(HTTPStatus.BAD_REQUEST, f"the content of {value['path']} was never sent")
                files[value["path"]] = File(self.hub.large[value["oid"]], is_large=True)
            elif key == "deletedFile":
                files.pop(value["path"])
                continue
            else:
                raise Refused(HTTPStatus.BAD_REQUEST, f"this server knows no {key}")
            sent.append(value["path"])
        oid = repo.commit(branch, files, header["value"]["summary"])
        self.hub.sent += sent
        self.hub.sent_bytes += len(body)
        if self.hub.breaks("answer"):
            self.break_off()
            return
        answer = {"success": True, "commitOid": oid, "commitUrl": f"{self.hub.endpoint}/{repo.name}/commit/{oid}"}
        self.send(HTTPStatus.OK, answer)

    def _resolve(self, repo: Repo, rest: str) -> None:
        """A file at a revision; a large one is elsewhere."""
        commit, path = self._split(repo, rest)
        headers = {"X-Repo-Commit": commit}
        if (file := repo.commits[commit].get(path)) is None:
            headers |= {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"}
            self.send(HTTPStatus.NOT_FOUND, b"Entry not found", headers)
        elif file.is_large:
            headers |= {"X-Linked-Etag": f'"{file.etag}"', "X-Linked-Size": str(len(file.content))}
            self.send(HTTPStatus.FOUND, headers={**headers, "Location": f"{self.hub.storage}/{file.sha256}"})
        else:
            self.send(HTTPStatus.OK, file.content, {**headers, "ETag": f'"{file.etag}"'})


def card_errors(content: str) -> list[str]:
    """What the Hub would refuse in a card's front matter: bad YAML, an unknown license, an incomplete model-index."""
    found = re.match(r"---\n(.*?)\n---\n", content, flags=re.DOTALL)
    if found is None:
        return []
    try:
        data = yaml.safe_load(found[1])
    except yaml.YAMLError as error:
        return [f"YAML: {error}"]
    errors = []
    if not isinstance(data, dict):
        return ["the front matter must be an object"]
    if "license" in data and data["license"] not in LICENSES:
        errors.append(f'"license" must be one of {sorted(LICENSES)}')
    languages = data.get("language") or []
    for language in [languages] if isinstance(languages, str) else languages:
        if not re.fullmatch("[a-z]{2,3}|multilingual|code", str(language)):
            errors.append(f'"language" must be an ISO 639 code, not {language!r}')
    for name in ("tags", "datasets", "metrics"):
        if not all(isinstance(value, str) for value in data.get(name) or []):
            errors.append(f'"{name}" must be strings')
    for model in data.get("model-index") or []:
        if not model.get("name") or "results" not in model:  # Trainer's cards have an empty list
            errors.append('"model-index" must have a name and results')
        for result in model.get("results") or []:
            if not result.get("task", {}).get("type"):
                errors.append('"model-index" results must have a task type')
            if not all(result.get("dataset", {}).get(key) for key in ("type", "name")):
                errors.append('"model-index" results must have a dataset type and name')
            if not all("type" in metric and "value" in metric for metric in result.get("metrics") or [{}]):
                errors.append('"model-index" metrics must have a type and a value')
    return errors
