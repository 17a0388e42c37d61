"""A Kubernetes API server in memory, as far as helm and the chart's jobs talk to one.

Real helm installs, upgrades, rolls back and uninstalls against it, hooks and watches included. Objects are stored as they are sent;
server-side apply keeps what the applier leaves out and somebody else set. Roles are enforced for accounts: a pod's requests come under
`/as/<account>`, which stands for its token. `kubelet_kit` runs what is stored as processes.
"""

from __future__ import annotations

import base64
import copy
import datetime
import json
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import orjson

Object = dict[str, Any]
Key = tuple[str, str, str, str]
"""Group and version ("apps/v1"), plural, namespace, name."""

KINDS = {
    "v1": {"Secret": "secrets", "ConfigMap": "configmaps", "Service": "services", "ServiceAccount": "serviceaccounts", "Pod": "pods"},
    "apps/v1": {"Deployment": "deployments", "StatefulSet": "statefulsets", "ReplicaSet": "replicasets"},
    "batch/v1": {"Job": "jobs", "CronJob": "cronjobs"},
    "rbac.authorization.k8s.io/v1": {"Role": "roles", "RoleBinding": "rolebindings"},
    "networking.k8s.io/v1": {"NetworkPolicy": "networkpolicies"},
    "policy/v1": {"PodDisruptionBudget": "poddisruptionbudgets"},
    "autoscaling/v2": {"HorizontalPodAutoscaler": "horizontalpodautoscalers"},
}  # fmt: skip
VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]
PATH = re.compile(
    r"^/(?:api|apis)/(?P<gv>v1|[a-z.0-9]+/v\d+)(?:/namespaces/(?P<ns>[^/]+))?"
    r"/(?P<plural>[a-z]+)(?:/(?P<name>[^/]+))?(?P<sub>/[a-z]+)?$"
)
OTHERS = ("metadata", "status")


class Problem(Exception):
    """An answer that is not what was asked for."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(code, reason, message)
        self.code = code
        self.reason = reason
        self.message = message


def _copy(one: Object) -> Object:
    """Of an object as it is on the wire; deep copies of all objects, ten times a second, slowed the pods down."""
    copied: Object = orjson.loads(orjson.dumps(one))
    return copied


class Kubernetes:
    """The store and its server on 127.0.0.1; a context manager. `kubeconfig` is for helm."""

    def __init__(self, place: Path) -> None:
        self._objects: dict[Key, Object] = {}
        self._applied: dict[Key, Object] = {}
        self._log: list[tuple[int, str, Key, Object]] = []
        self._version = 0
        self.changed = threading.Condition()
        self.unknown: list[str] = []
        """Requests that nothing here answers: a gap of this kit."""
        self._server = _server(self)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.kubeconfig = place / "kubeconfig"
        self.kubeconfig.write_text(
            json.dumps(
                {
                    "apiVersion": "v1", "kind": "Config", "current-context": "kit",
                    "clusters": [{"name": "kit", "cluster": {"server": self.url}}],
                    "contexts": [{"name": "kit", "context": {"cluster": "kit", "user": "kit"}}],
                    "users": [{"name": "kit", "user": {}}],
                }
            )
        )  # fmt: skip

    def __enter__(self) -> Kubernetes:
        threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="kubernetes", daemon=True
        ).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stopping = True  # type: ignore[attr-defined]  # watches look at it
        with self.changed:
            self.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()

    # what tests and the kubelet use

    def all(self, plural: str) -> list[Object]:
        """Copies of all objects of that plural, by name."""
        with self.changed:
            found = [
                one
                for key, one in sorted(self._objects.items(), key=lambda pair: pair[0][3])
                if key[1] == plural
            ]
            return [_copy(one) for one in found]

    def get(self, plural: str, name: str) -> Object | None:
        """A copy of one object, or None."""
        return next((one for one in self.all(plural) if one["metadata"]["name"] == name), None)

    def update(self, plural: str, name: str, change: Callable[[Object], None]) -> bool:
        """Change an object in place, as a controller or `kubectl` would. False when there is none."""
        with self.changed:
            for key, one in self._objects.items():
                if key[1] == plural and key[3] == name:
                    changed = _copy(one)
                    change(changed)
                    if changed != one:
                        self._store(key, changed, "MODIFIED")
                    return True
            return False

    def put(self, body: Object) -> Object:
        """Create an object."""
        group = body["apiVersion"]
        key = (group, KINDS[group][body["kind"]], body["metadata"]["namespace"], body["metadata"]["name"])
        with self.changed:
            return self._create(key, body)

    def remove(self, plural: str, name: str) -> None:
        """Delete an object, as its controller would."""
        with self.changed:
            for key in [key for key in self._objects if key[1] == plural and key[3] == name]:
                self._delete(key, {})

    # requests

    def answer(self, method: str, target: str, body: Object | None, content_type: str) -> tuple[int, Object]:
        """Status and document for a request. Raises `Problem`."""
        account = ""
        if target.startswith("/as/"):
            _, _, account, rest = target.split("/", 3)
            target = f"/{rest}"
        url = urlsplit(target)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        found = _discovery(url.path) if method == "GET" else None
        if found is not None:
            return 200, found
        match = PATH.match(unquote(url.path))
        if match is None or match["plural"] not in KINDS.get(match["gv"], {}).values():
            self.unknown.append(f"{method} {target}")
            raise Problem(404, "NotFound", f"the server could not find the requested resource {url.path}")
        with self.changed:
            if account:
                self._authorize(account, method, match)
            return self._act(method, match, query, body, content_type)

    def _act(
        self, method: str, match: re.Match[str], query: dict[str, str], body: Object | None, content_type: str
    ) -> tuple[int, Object]:
        group, plural, namespace, name = match["gv"], match["plural"], match["ns"] or "", match["name"] or ""
        key = (group, plural, namespace, name)
        match method:
            case "GET" if not name:
                return 200, self._list(group, plural, namespace, query)
            case "GET":
                return 200, self._existing(key)
            case "POST":
                assert body is not None
                key = (group, plural, namespace, body["metadata"]["name"])
                if key in self._objects:
                    raise Problem(409, "AlreadyExists", f'{plural} "{key[3]}" already exists')
                return 201, self._create(key, body)
            case "PUT":
                assert body is not None
                self._existing(key)
                return 200, self._store(
                    key,
                    {**body, "metadata": {**self._existing(key)["metadata"], **body["metadata"]}},
                    "MODIFIED",
                )
            case "PATCH" if "apply-patch" in content_type:
                assert body is not None
                return self._apply(key, body)
            case "PATCH":
                assert body is not None
                return 200, self._store(key, _merged(self._existing(key), body), "MODIFIED")
            case "DELETE":
                return 200, self._delete(key, body or {})
        raise Problem(405, "MethodNotAllowed", method)

    def _authorize(self, account: str, method: str, match: re.Match[str]) -> None:
        verb = {
            "GET": "get" if match["name"] else "list",
            "POST": "create",
            "PATCH": "patch",
            "PUT": "update",
            "DELETE": "delete",
        }[method]
        group = match["gv"].rpartition("/")[0]
        bound = {
            one["roleRef"]["name"]
            for one in self._of("rolebindings")
            if any(subject["name"] == account for subject in one["subjects"])
        }
        for role in self._of("roles"):
            if role["metadata"]["name"] not in bound:
                continue
            for rule in role["rules"]:
                names = rule.get("resourceNames")
                if (
                    group in rule["apiGroups"]
                    and f"{match['plural']}{match['sub'] or ''}" in rule["resources"]
                    and verb in rule["verbs"]
                    and (not names or match["name"] in names)
                ):
                    return
        raise Problem(403, "Forbidden", f"{account} may not {verb} {match['plural']} {match['name'] or ''}")

    def _of(self, plural: str) -> Iterator[Object]:
        return (one for key, one in self._objects.items() if key[1] == plural)

    def _list(self, group: str, plural: str, namespace: str, query: dict[str, str]) -> Object:
        found = [
            one
            for key, one in sorted(self._objects.items())
            if key[:2] == (group, plural) and namespace in ("", key[2]) and _matches(one, query)
        ]
        kind = next(kind for kind, name in KINDS[group].items() if name == plural)
        return {
            "kind": f"{kind}List", "apiVersion": group, "metadata": {"resourceVersion": str(self._version)}, "items": found,
        }  # fmt: skip

    def watch(self, target: str, stopping: Callable[[], bool]) -> Iterator[Object]:
        """Events of a watch request from its resource version on; blocks in between."""
        url = urlsplit(target)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        match = PATH.match(unquote(url.path))
        assert match is not None
        seen = int(query.get("resourceVersion") or 0)
        if "sendInitialEvents" in query:
            raise Problem(422, "Invalid", "initial events are not served")
        while not stopping():
            with self.changed:
                events = [
                    (version, kind, one)
                    for version, kind, key, one in self._log
                    if version > seen
                    and key[:2] == (match["gv"], match["plural"])
                    and match["ns"] in (None, key[2])
                    and _matches(one, query)
                ]
                if not events:
                    self.changed.wait(1.0)
                    continue
                seen = events[-1][0]
            for _, kind, one in events:
                yield {"type": kind, "object": one}

    # the store, under the lock

    def _existing(self, key: Key) -> Object:
        found = self._objects.get(key)
        if found is None:
            raise Problem(404, "NotFound", f'{key[1]} "{key[3]}" not found')
        return found

    def _create(self, key: Key, body: Object) -> Object:
        made = copy.deepcopy(body)
        made["metadata"] |= {
            "uid": str(uuid.uuid4()),
            "namespace": key[2],
            "creationTimestamp": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "generation": 1,
        }
        return self._store(key, made, "ADDED")

    def _store(self, key: Key, body: Object, kind: str) -> Object:
        self._version += 1
        before = self._objects.get(key)
        if before is not None and before.get("spec") != body.get("spec"):
            body["metadata"]["generation"] = before["metadata"].get("generation", 1) + 1
        body["metadata"]["resourceVersion"] = str(self._version)
        self._objects[key] = body
        self._log.append((self._version, kind, key, copy.deepcopy(body)))
        self.changed.notify_all()
        return body

    def _apply(self, key: Key, body: Object) -> tuple[int, Object]:
        known = self._objects.get(key)
        before, self._applied[key] = self._applied.get(key, {}), copy.deepcopy(body)
        if known is None:
            return 201, self._create(key, body)
        return 200, self._store(key, _applied(known, before, body), "MODIFIED")

    def _delete(self, key: Key, options: Object) -> Object:
        found = self._existing(key)
        for name, wanted in (options.get("preconditions") or {}).items():
            if found["metadata"][name] != wanted:
                raise Problem(409, "Conflict", f"the {name} in the precondition is not that of the object")
        del self._objects[key]
        self._applied.pop(key, None)
        self._version += 1
        self._log.append((self._version, "DELETED", key, found))
        self.changed.notify_all()
        return {"kind": "Status", "apiVersion": "v1", "status": "Success"}


def _applied(known: Object, before: Object, wanted: Object) -> Object:
    """Server-side apply: what the applier said before and does not say now goes, what others set stays."""
    result: Object = {}
    for name in [*known, *(name for name in wanted if name not in known)]:
        if name in wanted and isinstance(wanted[name], dict) and isinstance(known.get(name), dict):
            result[name] = _applied(known[name], before.get(name) or {}, wanted[name])
        elif name in wanted:
            result[name] = copy.deepcopy(wanted[name])
        elif name not in before:
            result[name] = known[name]
    return result


def _merged(known: Object, patch: Object) -> Object:
    """A JSON merge patch (strategic ones of this chart's objects are small enough to be that)."""
    result = copy.deepcopy(known)
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, dict) and isinstance(result.get(name), dict):
            result[name] = _merged(result[name], value)
        else:
            result[name] = value
    return result


def _matches(one: Object, query: dict[str, str]) -> bool:
    labels = one["metadata"].get("labels") or {}
    for part in filter(None, re.split(r",(?![^(]*\))", query.get("labelSelector", ""))):
        if " in (" in part:
            name, _, values = part.partition(" in (")
            if labels.get(name) not in values.rstrip(")").split(","):
                return False
            continue
        name, equals, value = part.partition("=")
        if (labels.get(name) != value.lstrip("=")) if equals else (name not in labels):
            return False
    for part in filter(None, query.get("fieldSelector", "").split(",")):
        name, _, value = part.partition("=")
        if name == "metadata.name" and one["metadata"]["name"] != value.lstrip("="):
            return False
    return True


def _discovery(path: str) -> Object | None:
    match path.strip("/").split("/"):
        case ["version"]:
            return {"major": "1", "minor": "36", "gitVersion": "v1.36.0"}
        case ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        case ["apis"]:
            groups = []
            for one in KINDS:
                if "/" in one:
                    group, version = one.split("/")
                    entry = {"groupVersion": one, "version": version}
                    groups.append({"name": group, "versions": [entry], "preferredVersion": entry})
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        case ["api", "v1"]:
            return _resources("v1")
        case ["apis", group, version] if f"{group}/{version}" in KINDS:
            return _resources(f"{group}/{version}")
        case ["openapi", "v3"]:
            paths = {_prefix(one): {"serverRelativeURL": f"/openapi/v3/{_prefix(one)}"} for one in KINDS}
            return {"paths": paths}
        case ["openapi", "v3", *rest] if (
            one := "/".join(rest).removeprefix("apis/").removeprefix("api/")
        ) in KINDS:
            return _openapi(one)
        case ["api", "v1", "namespaces", name]:
            return {
                "kind": "Namespace",
                "apiVersion": "v1",
                "metadata": {"name": name},
                "status": {"phase": "Active"},
            }
    return None


def _prefix(group: str) -> str:
    return f"api/{group}" if "/" not in group else f"apis/{group}"


def _openapi(group: str) -> Object:
    """Just enough that a client knows: the server validates fields itself."""
    paths = {}
    for kind, plural in KINDS[group].items():
        name, _, version = group.rpartition("/")
        paths[f"/{_prefix(group)}/namespaces/{{namespace}}/{plural}/{{name}}"] = {
            "patch": {
                "x-kubernetes-group-version-kind": {"group": name, "version": version, "kind": kind},
                "parameters": [{"name": "fieldValidation", "in": "query"}],
                "responses": {},
            }
        }
    return {
        "openapi": "3.0.0",
        "info": {"title": "kit", "version": "1"},
        "paths": paths,
        "components": {"schemas": {}},
    }


def _resources(group: str) -> Object:
    found = [
        {"name": plural, "singularName": kind.lower(), "namespaced": True, "kind": kind, "verbs": VERBS}
        for kind, plural in KINDS[group].items()
    ]
    if group == "v1":
        found.append(
            {
                "name": "namespaces",
                "singularName": "namespace",
                "namespaced": False,
                "kind": "Namespace",
                "verbs": VERBS,
            }
        )
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group, "resources": found}


def _server(kubernetes: Kubernetes) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Nothing: the log of a test is the test's."""

        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            raw = self.rfile.read(length) if length else b""
            content_type = self.headers.get("Content-Type", "")
            try:
                if self.command == "GET" and "watch=" in self.path:
                    self._watch()
                    return
                status, document = kubernetes.answer(self.command, self.path, _body(raw), content_type)
            except Problem as problem:
                status, document = problem.code, _status(problem)
            self._send(status, document)

        def _send(self, status: int, document: Object) -> None:
            content = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def _watch(self) -> None:
            events = kubernetes.watch(self.path, lambda: bool(getattr(self.server, "stopping", False)))
            if "sendInitialEvents" in self.path:
                next(events)
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.close_connection = True
            try:
                for event in events:
                    line = json.dumps(event).encode() + b"\n"
                    self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
                    self.wfile.flush()
            except OSError:
                return  # whoever watched has gone

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815  # http.server's names

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    return server


def _body(raw: bytes) -> Object | None:
    if not raw:
        return None
    import yaml

    if raw.startswith(PROTOBUF):
        return _secret(raw)
    text = raw.decode()
    return json.loads(text) if text.startswith("{") else yaml.safe_load(text)


def _status(problem: Problem) -> Object:
    return {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": problem.code,
        "reason": problem.reason, "message": problem.message, "details": {},
    }  # fmt: skip


PROTOBUF = b"k8s\0"


def _secret(raw: bytes) -> Object:
    """A Secret in Kubernetes' protobuf form: how helm stores its releases. Field numbers are those of its published definitions."""
    envelope = _fields(raw[len(PROTOBUF) :])
    kind = _fields(envelope[1][0])[2][0].decode()
    if kind == "DeleteOptions":
        return {}
    assert kind == "Secret", kind
    secret = _fields(envelope[2][0])
    metadata = _fields(secret[1][0])
    labels = (_fields(one) for one in metadata.get(11, ()))
    data = (_fields(one) for one in secret.get(2, ()))
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": metadata[1][0].decode(),
            "labels": {one[1][0].decode(): one.get(2, [b""])[0].decode() for one in labels},
        },
        "type": secret[3][0].decode(),
        "data": {one[1][0].decode(): base64.b64encode(one.get(2, [b""])[0]).decode() for one in data},
    }


def _fields(raw: bytes) -> dict[int, list[bytes]]:
    """The length-delimited fields of a protobuf message by number; numbers are skipped."""
    found: dict[int, list[bytes]] = {}
    at = 0
    while at < len(raw):
        tag, at = _number(raw, at)
        size, at = _number(raw, at)
        if tag & 7 == 2:
            found.setdefault(tag >> 3, []).append(raw[at : at + size])
            at += size
        else:
            assert tag & 7 == 0, "only numbers and bytes are expected here"
    return found


def _number(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value, at
