"""Certificates: when they expire, and whether a site's own would be accepted, before it tries."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from fedvisage.core.errors import FedVisageError


@dataclass(frozen=True)
class Certificate:
    """A certificate of a kit."""

    owner: str
    expires: datetime
    path: Path

    @property
    def days_left(self) -> float:
        """Days until it expires; negative afterwards."""
        return (self.expires - datetime.now(UTC)).total_seconds() / 86400


def read_certificate(path: Path) -> Certificate:
    """Whose it is and how long it is valid."""
    try:
        return _certificate(path.read_bytes(), path)
    except (OSError, ValueError, IndexError) as error:
        raise FedVisageError(f"cannot read the certificate {path}: {error}") from None


def issued(authority: Path) -> dict[str, Certificate]:
    """The certificates that a CA has given out, by owner; none where the CA is kept elsewhere."""
    path = next(authority.glob("*/state/cert.json"), None)
    if path is None:
        return {}
    try:
        table = json.loads(path.read_text("utf-8"))
        entries = [entry["cert"].encode() for entry in table.values() if isinstance(entry, dict)]
        found = [_certificate(entry, path) for entry in entries]
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise FedVisageError(f"cannot read the certificates in {path}: {error}") from None
    return {certificate.owner: certificate for certificate in found}


def _certificate(text: bytes, path: Path) -> Certificate:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    found = x509.load_pem_x509_certificate(text)
    owner = str(found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
    return Certificate(owner, found.not_valid_after_utc, path)


def kit_certificates(kit: Path) -> list[Certificate]:
    """A kit's own certificate and the CA's."""
    own = next((kit / "startup" / name for name in _OWN if (kit / "startup" / name).exists()), None)
    if own is None:
        raise FedVisageError(f"{kit} holds no certificate: is it a start-up kit?")
    return [read_certificate(own), read_certificate(kit / "startup" / "rootCA.pem")]


def check_kit(kit: Path, owner: str = "") -> None:
    """Say why the other side would refuse this kit: expired, of another CA, or of another name."""
    from cryptography import x509

    own, root = kit_certificates(kit)
    for certificate in (own, root):
        if certificate.days_left <= 0:
            when = certificate.expires.strftime("%Y-%m-%d")
            raise FedVisageError(f"{certificate.path} expired on {when}: ask the federation's operator to renew it")
    try:
        signer = x509.load_pem_x509_certificate(root.path.read_bytes())
        x509.load_pem_x509_certificate(own.path.read_bytes()).verify_directly_issued_by(signer)
    except Exception as error:
        raise FedVisageError(f"{own.path} was not issued by the CA in {root.path.name}: {error}") from None
    if owner and own.owner != owner:
        raise FedVisageError(f"{own.path} belongs to '{own.owner}', and this is '{owner}'")


_OWN = ("client.crt", "server.crt")
