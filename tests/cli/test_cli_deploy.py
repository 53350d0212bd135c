"""`fedvisage deploy init` and `fedvisage party`, as far as they need no running federation."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedvisage.cli.main import app
from fedvisage.core.errors import FedVisageError
from fedvisage.core.parcel import PRIVATE_EMBEDDINGS
from fedvisage.deploy import extra, open_deployment

pytest.importorskip("nvflare", reason="the nvflare extra is not installed")
yaml = pytest.importorskip("yaml")


def call(*words: object) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("deploy") / "federation"
    answer = json.loads(call("deploy", "init", made, "--parties", 2, "--port", 0, "--json"))
    assert answer["parties"] == ["party-00", "party-01"]
    return made


def test_a_federation_is_folders_that_only_their_owner_can_read(folder: Path) -> None:
    deployment = open_deployment(folder)
    assert folder.stat().st_mode & 0o077 == 0
    for party in deployment.roles:
        home = deployment.party(party)
        assert home.stat().st_mode & 0o077 == 0
        assert (home / "site" / "startup" / "client.key").stat().st_mode & 0o077 == 0
        assert {path.name for path in home.iterdir()} == {"README.md", "party.toml", "site", "start.sh"}
        resources = json.loads((home / "site" / "local" / "resources.json").read_text())
        assert resources["allow_log_streaming"] is False
        assert all(name.startswith("fedvisage.") for name in resources["class_allow_list"])
        assert "SiteLogStreamer" not in json.dumps(resources)
        rights = json.loads((home / "site" / "local" / "authorization.json").read_text())["permissions"]
        assert {entry["byoc"] for entry in rights.values()} == {"none"}
    assert "/tmp/nvflare" not in (deployment.server / "local" / "resources.json").read_text()


def test_an_operator_sees_what_would_leave_before_joining(folder: Path) -> None:
    party = folder / "parties" / "party-00"
    answer = json.loads(call("party", "check", party, "smoke", "--set", 'compare=["alone"]', "--json"))
    assert answer["takes_part"] is True
    assert {row["group"] for row in answer["leaves"]} == {"backbone", "buffers", "statistics"}
    assert {row["group"]: row["methods"] for row in answer["leaves"] if row["phase"] == "train"} == {
        "backbone": ["fedavg"],
        "buffers": ["fedavg"],
        "statistics": ["fedavg", "alone"],
    }
    words = ["party", "check", str(party), "smoke", "--set", "method.classifier=shared", "--set", "compare=[]"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1
    assert f"{PRIVATE_EMBEDDINGS} may not leave, and phase 'train' sends it" in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("compared", "objection"),
    [
        ("fedgc", f"fedgc: {PRIVATE_EMBEDDINGS} may not leave, and phase 'train' sends it"),
        ("central", "central pools images, and images never leave a party"),
    ],
)
def test_an_operator_is_told_of_every_method_that_is_compared(folder: Path, compared: str, objection: str) -> None:
    words = ["party", "check", str(folder / "parties" / "party-00"), "smoke", "--set", f'compare=["{compared}"]']
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 1
    answer = json.loads(done.output)
    assert answer["takes_part"] is False
    assert answer["objections"] == [objection]
    assert compared in {name for row in answer["leaves"] for name in row["methods"]}
    printed = " ".join(CliRunner().invoke(app, words).output.split())
    assert f"(fedavg, {compared})" in printed


def test_status_shows_when_certificates_expire(folder: Path) -> None:
    answer = json.loads(call("deploy", "status", folder, "--json"))
    assert list(answer["hosts"]) == ["server", "operator", "party-00", "party-01"]
    assert all(len(entry["expires"]) == 10 for entry in answer["hosts"].values())
    assert answer["warnings"] == []


def test_status_shows_parties_whose_folders_were_handed_over(folder: Path, tmp_path: Path) -> None:
    there = json.loads(call("deploy", "status", folder, "--json"))["hosts"]["party-01"]
    (folder / "parties" / "party-01").rename(tmp_path / "party-01")
    try:
        assert json.loads(call("deploy", "status", folder, "--json"))["hosts"]["party-01"] == there
    finally:
        (tmp_path / "party-01").rename(folder / "parties" / "party-01")


def test_a_certificate_that_expires_soon_is_warned_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedvisage.cli.deploy.SOON", 400)
    warnings = json.loads(call("deploy", "status", folder, "--json"))["warnings"]
    assert any("client.crt of party-00 expires in 3" in line and "fedvisage deploy renew" in line for line in warnings)
    assert any("of operator" in line for line in warnings)


def test_the_compose_file_starts_what_deploy_init_makes(folder: Path) -> None:
    """Each service mounts one folder of the federation and runs the script in it; only the server may open a port."""
    table = yaml.safe_load((Path(__file__).parents[2] / "examples" / "compose.yaml").read_text())
    services = table["services"]
    assert set(services) == {"server", *open_deployment(folder).roles}
    for name, service in services.items():
        [(source, target)] = [volume.split(":") for volume in service["volumes"]]
        home = folder / Path(source).relative_to("federation")
        assert home == (folder if name == "server" else folder / "parties" / name)
        script = home / Path(service["command"][0]).relative_to(target)
        assert os.access(script, os.X_OK)
        assert "ports" not in service


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["deploy", "init", "FOLDER", "--parties", "2"], "is not an empty folder"),
        (["deploy", "init", "OTHER"], "say how many parties"),
        (["deploy", "init", "OTHER", "--parties", "2", "--recipe", "smoke"], "--parties 2, but the recipe has 8"),
        (["deploy", "init", "OTHER", "--parties", "2", "--allow", "faces"], "no group 'faces'"),
        (["deploy", "init", "OTHER", "--parties", "2", "--name", "My Federation"], "name"),
        (["deploy", "up", "OTHER"], "no federation in"),
        (["deploy", "logs", "FOLDER", "party-09"], "no host 'party-09'"),
        (["deploy", "logs", "FOLDER"], "has never run"),
        (["party", "check", "FOLDER", "smoke"], "no party in"),
        (["run", "smoke", "--on", "OTHER", "--out", "OUT"], "no federation in"),
        (["run", "smoke", "--on", "FOLDER", "--out", "OUT"], "central pools images"),
    ],
)
def test_a_mistake_is_one_clear_line(folder: Path, tmp_path: Path, words: list[str], reason: str) -> None:
    places = {"FOLDER": folder, "OTHER": tmp_path / "other", "OUT": tmp_path / "out"}
    with pytest.raises(FedVisageError, match=reason) as error:
        CliRunner().invoke(app, [str(places.get(word, word)) for word in words], catch_exceptions=False)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "other").exists()
    assert not (tmp_path / "out").exists()


def test_without_the_extra_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise extra.PackageNotFoundError(name)

    monkeypatch.setattr(extra, "version", missing)
    with pytest.raises(FedVisageError, match=r"pip install 'fedvisage\[nvflare\]'"):
        extra.require_nvflare()
    monkeypatch.setattr(extra, "version", lambda name: "2.5.0")
    with pytest.raises(FedVisageError, match=r"need NVIDIA FLARE 2\.9\.0, and 2\.5\.0 is installed"):
        extra.require_nvflare()
