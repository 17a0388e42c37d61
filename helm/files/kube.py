"""The API server, as far as the chart's jobs need it: plain requests with the pod's own token."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote

import cli

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
SECONDS = 15.0


def serving(component: str = "") -> str:
    """The query for what serves in this release, of every version: nodes and workers, or one of them."""
    wanted = f"={component}" if component else " in (node,worker)"
    whose = f"app.kubernetes.io/name={os.environ['NAME']},app.kubernetes.io/instance={os.environ['INSTANCE']}"
    return f"labelSelector={quote(f'{whose},app.kubernetes.io/component{wanted}')}"


class Refused(cli.Again):
    """The API server said no. `status` is HTTP's."""

    def __init__(self, status: int, what: str, reason: str) -> None:
        super().__init__(status, what, reason)
        self.status = status
        self.what = what
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.what}: the API server answered {self.status}: {self.reason[:300]}"


class Kube:
    """Requests within one namespace. KUBE_API names another address, such as that of `kubectl proxy`.

    An image's HTTPS_PROXY is for what is outside; the API server is not.
    """

    def __init__(self) -> None:
        host, port = (
            os.environ.get("KUBERNETES_SERVICE_HOST", ""),
            os.environ.get("KUBERNETES_SERVICE_PORT", "443"),
        )
        self._base = os.environ.get("KUBE_API") or f"https://{f'[{host}]' if ':' in host else host}:{port}"
        self._namespace = os.environ["KUBE_NAMESPACE"]
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
        if self._base.startswith("https://"):
            tls = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
            handlers.append(urllib.request.HTTPSHandler(context=tls))
        self._opener = urllib.request.build_opener(*handlers)

    def ask(
        self, method: str, group: str, kind: str, name: str = "", body: Any = None, query: str = ""
    ) -> Any:
        """One request: `group` is "api/v1" or "apis/apps/v1", `kind` the plural; PATCH merges. Raises `Refused`, `OSError`."""
        path = f"/{group}/namespaces/{self._namespace}/{kind}" + (f"/{name}" if name else "")
        request = urllib.request.Request(
            self._base + path + (f"?{query}" if query else ""),
            method=method,
            data=json.dumps(body).encode() if body is not None else None,
            headers={
                "Content-Type": f"application/{'merge-patch+json' if method == 'PATCH' else 'json'}",
                "Accept": "application/json",
                **self._authorization(),
            },
        )
        try:
            with self._opener.open(request, timeout=SECONDS) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise Refused(error.code, f"{method} {path}", error.read().decode(errors="replace")) from None
        except (http.client.HTTPException, ValueError) as error:  # the connection ended within an answer
            raise OSError(f"{method} {path}: no whole answer ({error!r})") from None

    def _authorization(self) -> dict[str, str]:
        token = ACCOUNT / "token"  # read each time: it is renewed
        return {"Authorization": f"Bearer {token.read_text().strip()}"} if token.exists() else {}
