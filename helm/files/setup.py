"""Creates the Secrets that are made once. What exists is left as it is; this job has no right to change it, with one exception.

It asks whether a Secret is there, and creates it if not; of two jobs at once the API server lets one win. The exception: the users of a
bundled NATS. A queue of steps that comes later needs a user for its workers, so users are added; none is changed, and none goes,
since the workers of an older version may still be there.
"""

from __future__ import annotations

import base64
import datetime
import ipaddress
import os
import secrets
import tempfile
from pathlib import Path
from typing import Any

import cli
from kube import Kube, Refused

LEFT_BY_ARGO = {
    "argocd.argoproj.io/sync-options": "Prune=false,Delete=false",
    "argocd.argoproj.io/compare-options": "IgnoreExtraneous",
}
"""Argo CD, where it goes by the label `app.kubernetes.io/instance`, takes what is not in Git for a leftover, and prunes it."""


def main() -> int:
    """Each Secret that the chart asks for, by its environment variable."""
    kube = Kube()
    makers = (("KEYS_SECRET", keys), ("NATS_AUTH_SECRET", nats_users), ("NATS_TLS_SECRET", certificate))
    for variable, make in makers:
        name = os.environ.get(variable, "")
        if not name:
            continue
        found = existing(kube, name)
        if found is None:
            create(kube, name, make())
        elif variable == "NATS_AUTH_SECRET":
            add_users(kube, found)
        else:
            cli.tell(f"secret {name} is there and stays as it is")
    return 0


def existing(kube: Kube, name: str) -> Any:
    """The Secret, or None. Raises `Refused`."""
    try:
        return kube.ask("GET", "api/v1", "secrets", name)
    except Refused as refused:
        if refused.status != 404:
            raise
        return None


def add_users(kube: Kube, found: Any) -> None:
    """Users that are missing; the others keep their passwords. Raises `Refused`, also when somebody else changes it just now."""
    name = found["metadata"]["name"]
    data = {entry: base64.b64decode(text).decode() for entry, text in (found.get("data") or {}).items()}
    queues = {**queues_of(data), **wanted_queues()}
    made = nats_users(queues, data)
    missing = sorted(made.keys() - data.keys())
    if not missing:
        cli.tell(f"secret {name} is there and stays as it is")
        return
    found["data"] = {
        entry: base64.b64encode(text.encode()).decode() for entry, text in {**data, **made}.items()
    }
    kube.ask("PUT", "api/v1", "secrets", name, found)  # refused if it is not the one that was read
    cli.tell(f"secret {name} has {', '.join(missing)} now; what was there is as it was")


def create(kube: Kube, name: str, data: dict[str, str]) -> None:
    """Create the Secret, unless somebody else just did. Raises `Refused`."""
    labels = {
        "app.kubernetes.io/name": os.environ["NAME"],
        "app.kubernetes.io/instance": os.environ["INSTANCE"],
    }
    body = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "labels": labels, "annotations": LEFT_BY_ARGO},
        "type": "Opaque",
        "data": {entry: base64.b64encode(text.encode()).decode() for entry, text in data.items()},
    }
    try:
        kube.ask("POST", "api/v1", "secrets", body=body)
    except Refused as refused:
        if refused.status != 409:
            raise
        cli.tell(f"secret {name} was made by somebody else meanwhile")
        return
    cli.tell(f"secret {name} made, with {', '.join(sorted(data))}")


def keys() -> dict[str, str]:
    """A key file with one key."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "key"
        cli.ask("keys", "generate", str(path))
        return {os.environ["KEYS_ENTRY"]: path.read_text()}


def wanted_queues() -> dict[str, str]:
    """Queues of steps whose workers need a user, each with how it is written in names: NATS_QUEUES is `queue:name,...`."""
    pairs = (one.partition(":") for one in os.environ.get("NATS_QUEUES", "").split(",") if one)
    return {queue: name for queue, _, name in pairs}


def queues_of(data: dict[str, str]) -> dict[str, str]:
    """The queues that have a user in a Secret."""
    entries = (
        entry.removesuffix("-user")
        for entry in data
        if entry.startswith("worker-") and entry.endswith("-user")
    )
    return {data[f"{entry}-user"].removeprefix("worker-"): entry.removeprefix("worker-") for entry in entries}


def nats_users(queues: dict[str, str] | None = None, known: dict[str, str] | None = None) -> dict[str, str]:
    """One user per role and per queue's workers, the server's side of them, and the routes between servers.

    `known`: entries that are there already; their passwords stay.
    """
    queues = wanted_queues() if queues is None else queues
    known = known or {}
    words = ["roles", "config", "--namespace", os.environ["SOJOURN_NAMESPACE"]]
    made = cli.ask(*words, *(f"--queue={queue}" for queue in queues))
    config, data = made["config"], {}
    for user in made["users"]:
        name = user["role"]
        if name == "worker":
            name = f"worker-{queues[user['user'].removeprefix('worker-')]}"
        password = known.get(f"{name}-password", user["password"])
        config = config.replace(user["password"], password)
        data[f"{name}-user"], data[f"{name}-password"] = user["user"], password
    data["accounts.conf"] = config + "\n"
    data["routes.conf"] = known.get("routes.conf") or routes()
    return data


def routes() -> str:
    """The inside of the servers' `cluster` block: their common password and each one's address."""
    servers = [one for one in os.environ["NATS_ROUTES"].split(",") if one]
    password = secrets.token_hex(24)
    lines = [f"authorization {{ user: route, password: {password}, timeout: 5 }}", "routes: ["]
    lines += [f'  "nats-route://route:{password}@{server}"' for server in servers]
    return "\n".join([*lines, "]"]) + "\n"


def certificate() -> dict[str, str]:
    """A certificate authority of this release's own and the servers' certificate under it, for ten years."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    def named(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    def builder(name: str, issuer: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(named(name))
            .issuer_name(named(issuer))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=3650))
        )

    def pem(one: x509.Certificate) -> str:
        return one.public_bytes(serialization.Encoding.PEM).decode()

    host, namespace = os.environ["NATS_HOST"], os.environ["KUBE_NAMESPACE"]
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority_name = f"{host} authority"
    authority = (
        builder(authority_name, authority_name, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .add_extension(
            x509.KeyUsage(
                digital_signature=True, content_commitment=False, key_encipherment=False, data_encipherment=False,
                key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
            ),
            critical=True,
        )
        .sign(authority_key, hashes.SHA256())
    )  # fmt: skip
    names = [host, f"{host}.{namespace}", f"{host}.{namespace}.svc", f"{host}.{namespace}.svc.cluster.local"]
    headless = f"{host}-headless"
    for domain in (
        headless,
        f"{headless}.{namespace}",
        f"{headless}.{namespace}.svc",
        f"{headless}.{namespace}.svc.cluster.local",
    ):
        names += [domain, f"*.{domain}"]
    alternatives: list[x509.GeneralName] = [x509.DNSName(name) for name in [*names, "localhost"]]
    alternatives.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    server = (
        builder(host, authority_name, key)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            # servers are each other's clients on routes
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
            critical=False,
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
        )
        .sign(authority_key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {"ca.crt": pem(authority), "tls.crt": pem(server), "tls.key": private.decode()}


if __name__ == "__main__":
    cli.end(main)
