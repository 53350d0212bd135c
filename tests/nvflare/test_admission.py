"""Who is let in: certificates of this federation's CA, one host for each, and jobs that carry no code."""

from __future__ import annotations

import json
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from real_hosts import EVERYTHING, Hosts, eventually, recipe_with

from fedvisage.build import resolve
from fedvisage.core.errors import FedVisageError
from fedvisage.deploy.certificates import check_kit, kit_certificates
from fedvisage.deploy.folder import SITE, Deployment, Settings
from fedvisage.deploy.processes import CLIENT, _command, down, party_command, running, up
from fedvisage.deploy.provision import create, free_port, renew
from fedvisage.deploy.shares import hand_out, roles_of
from fedvisage.federation.nvflare.jobs import write_job


def copy_kit(hosts: Hosts, party: str, to: Path) -> Path:
    """A party's kit as a thief would have it: without the folder that the party works in."""
    kit = to / "site"
    for name in ("startup", "local"):
        shutil.copytree(hosts.deployment.party(party) / SITE / name, kit / name)
    return kit


def expire(kit: Path, authority: Path) -> None:
    """Give a kit a certificate that its own CA signed, and that ended yesterday."""
    state = json.loads(next(authority.glob("*/state/cert.json")).read_text())
    signer = serialization.load_pem_private_key(state["root_pri_key"].encode(), None)
    path = kit / "startup" / "client.crt"
    old = x509.load_pem_x509_certificate(path.read_bytes())
    now = datetime.now(UTC)
    made = x509.CertificateBuilder(old.issuer, old.subject, old.public_key(), x509.random_serial_number())
    made = made.not_valid_before(now - timedelta(days=9)).not_valid_after(now - timedelta(days=1))
    for extension in old.extensions:
        made = made.add_extension(extension.value, extension.critical)
    path.write_bytes(made.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))


@contextmanager
def started(kit: Path, name: str) -> Iterator[Path]:
    """A client that skips our own checks before starting; its log."""
    (kit / "transfer").mkdir()
    log = kit / "console.log"
    command = _command(["-m", CLIENT], kit, "fed_client.json", [f"uid={name}"])
    with log.open("wb") as file:
        process = subprocess.Popen(command, cwd=kit, stdout=file, stderr=file)
    try:
        yield log
    finally:
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
        process.kill()
        process.wait()


def is_answered(deployment: Deployment, kit: Path) -> bool:
    """Whether the server's TLS lets in a connection that comes with the certificate of a kit."""
    startup = kit / "startup"
    context = ssl.create_default_context(cafile=startup / "rootCA.pem")
    context.load_cert_chain(startup / "client.crt", startup / "client.key")
    context.check_hostname = False
    context.set_alpn_protocols(["h2"])
    place = ("127.0.0.1", deployment.settings.port)
    try:
        with socket.create_connection(place, 10) as plain, context.wrap_socket(plain) as secure:
            secure.settimeout(20)
            return secure.recv(9) != b""  # with TLS 1.3 the server looks at the certificate after the client is done
    except (ssl.SSLError, ConnectionResetError):
        return False


def says(log: Path, pattern: str) -> bool:
    return eventually(lambda: re.search(pattern, log.read_text(errors="replace")) is not None, 60)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """Another federation of the same name and with the same parties: only its CA differs."""
    settings = Settings(port=free_port(), parties={f"party-0{number}": "trainer" for number in range(3)})
    return create(tmp_path_factory.mktemp("other") / "federation", settings)


def test_strangers_are_refused_and_the_federation_goes_on(hosts: Hosts, other: Deployment, tmp_path: Path) -> None:
    forged = copy_kit(hosts, "party-00", tmp_path / "forged")
    for name in ("client.crt", "client.key"):
        shutil.copy2(other.party("party-00") / SITE / "startup" / name, forged / "startup" / name)
    expired = copy_kit(hosts, "party-01", tmp_path / "expired")
    expire(expired, hosts.deployment.authority)
    twin = copy_kit(hosts, "party-02", tmp_path / "twin")
    posing = copy_kit(hosts, "party-02", tmp_path / "posing")

    with (
        started(forged, "party-00") as first,
        started(expired, "party-01") as second,
        started(twin, "party-02") as third,
        started(posing, "party-00") as fourth,
    ):
        server = hosts.deployment.server / "log.txt"
        assert says(server, "refused a second host with the certificate of 'party-02': the first is connected")
        assert says(server, "authenticated as 'party-02' but claimed endpoint 'party-00'")
        # Refused in the answer it gives up; cut off before one, it asks for ever, which three refusals in a row show.
        assert says(fourth, r"could not register|(re-challenge[\s\S]*){3}")
        handshakes = hosts.deployment.server / "console.log"
        for kit, reason in ((forged, "unable to get local issuer certificate"), (expired, "certificate has expired")):
            assert not is_answered(hosts.deployment, kit)
            assert says(handshakes, f"Handshake failed .*CERTIFICATE_VERIFY_FAILED: {reason}")
        assert is_answered(hosts.deployment, twin), "TLS alone lets in a copy of a certificate"
        for log in (first, second, third, fourth):
            assert "Successfully registered" not in log.read_text()
        assert hosts.deployment.console.connected() == set(hosts.deployment.roles)
    assert "Re-login" not in server.read_text()


def test_a_site_says_itself_why_its_certificate_will_not_do(hosts: Hosts, other: Deployment, tmp_path: Path) -> None:
    party = tmp_path / "party-01"
    shutil.copytree(hosts.deployment.party("party-01"), party, ignore=shutil.ignore_patterns("*.log", "state", "log*"))
    assert party_command(party)
    expire(party / SITE, hosts.deployment.authority)
    with pytest.raises(FedVisageError, match=r"client.crt expired on 20.*renew"):
        party_command(party)
    for name in ("client.crt", "client.key"):
        shutil.copy2(other.party("party-01") / SITE / "startup" / name, party / SITE / "startup" / name)
    with pytest.raises(FedVisageError, match="was not issued by the CA"):
        party_command(party)
    shutil.copytree(hosts.deployment.party("party-02") / SITE / "startup", party / SITE / "startup", dirs_exist_ok=True)
    with pytest.raises(FedVisageError, match="belongs to 'party-02', and this is 'party-01'"):
        party_command(party)


def test_certificates_are_renewed_by_the_same_ca(other: Deployment) -> None:
    before = {name: kit_certificates(kit) for name, kit in other.kits().items()}
    expire(other.party("party-00") / SITE, other.authority)
    renew(other)
    for name, kit in other.kits().items():
        check_kit(kit, name if name != "server" else "")
        own, root = kit_certificates(kit)
        assert own.days_left > 350
        assert root.expires == before[name][1].expires


@pytest.fixture
def careless(tmp_path: Path) -> Iterator[Deployment]:
    """A federation whose server was changed to allow everything; the sites are as we make them."""
    recipe = resolve(recipe_with(tmp_path, {"partition.parties": 2}))
    settings = Settings(port=free_port(), parties=roles_of(recipe))
    deployment = create(tmp_path / "federation", settings, EVERYTHING)
    hand_out(recipe, deployment)
    local = deployment.server / "local"
    shutil.copy2(local / "authorization.json.default", local / "authorization.json")
    resources = json.loads((local / "resources.json").read_text()) | {"class_allow_list": ["*"]}
    (local / "resources.json").write_text(json.dumps(resources))
    try:
        up(deployment)
        yield deployment
    finally:
        deployment.console.close()
        down(deployment)
    assert running(deployment) == []


def test_a_job_that_carries_code_is_refused_by_every_site(careless: Deployment, tmp_path: Path) -> None:
    """Server-sent code and classes that are not ours, from a server that lets its administrator do anything."""
    proof = tmp_path / "proof"
    job = write_job(tmp_path / "code", sorted(careless.roles), 20.0)
    custom = job / "party" / "custom"
    custom.mkdir()
    (custom / "evil.py").write_text(
        f"open({str(proof)!r}, 'a').write('ran')\n"
        "from nvflare.apis.executor import Executor\n"
        "class Evil(Executor):\n    def execute(self, *a): pass\n"
    )
    settings = job / "party" / "config" / "config_fed_client.json"
    table = json.loads(settings.read_text())
    table["executors"][0]["executor"]["path"] = "evil.Evil"
    settings.write_text(json.dumps(table))
    first = careless.console.submit(job)
    assert eventually(lambda: careless.console.status(first).startswith("FINISHED"), 60)
    assert careless.console.status(first) != "FINISHED:COMPLETED"
    answers = (careless.server / "log.txt").read_text()
    for party in careless.roles:
        assert f"{party}: NVFLARE_ERROR: BYOC not permitted" in answers
    assert not proof.exists()
    shutil.rmtree(custom)
    table["executors"][0]["executor"] = {"path": "nvflare.app_common.executors.client_api_executor.ClientAPIExecutor"}
    settings.write_text(json.dumps(table))
    second = careless.console.submit(job)
    assert eventually(lambda: careless.console.status(second).startswith("FINISHED"), 60)
    assert careless.console.status(second) != "FINISHED:COMPLETED"
    told = (path.read_text() for party in careless.roles for path in careless.party(party).glob("site/*/log.txt"))
    assert all("ClientAPIExecutor' at config path" in text and "is not in allow_list" in text for text in told)
