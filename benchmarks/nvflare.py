"""Real hosts: exchange time against NVFlare's own exchange of the same tensors, and the server's memory.

Both federations run on this machine at the same time, with mutual TLS, the same intervals and parties that do nothing;
their exchanges alternate.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import safetensors.torch as safetensors
import torch

from benchmarks.common import Row, Scale, seconds, side_by_side
from benchmarks.nvflare_peer import TENSORS
from fedvisage.core.flat import flat_views
from fedvisage.core.parcel import BACKBONE, Parcel, Stamp, decode, encode
from fedvisage.deploy.folder import Deployment, Settings
from fedvisage.deploy.processes import down, running, up
from fedvisage.deploy.provision import create, free_port
from fedvisage.faces.faceset import FaceSet, write_faceset
from fedvisage.faces.synthetic import SyntheticFaces
from fedvisage.federation.nvflare.jobs import RELAY, write_job
from fedvisage.federation.nvflare.link import Link, Listener
from fedvisage.federation.nvflare.transport import NVFlare
from fedvisage.models import create_backbone

Exchange = Callable[[int], float]
"""Seconds for an exchange of so many parameters."""
PEER = "benchmarks.nvflare_peer"
ROOT = str(Path(__file__).parents[1])


def measure(scale: Scale) -> list[Row]:
    rows = [packing()]
    if scale == "smoke":
        return rows
    with federation(3, 112, 4) as deployment:
        up(deployment)
        return [*rows, *server_memory(deployment), *exchanges(deployment, scale)]


def exchanges(deployment: Deployment, scale: Scale) -> list[Row]:
    """With two of its parties."""
    rows = []
    with ExitStack() as stack:
        ours, bare = stack.enter_context(our_exchange(deployment)), stack.enter_context(bare_exchange())
        for parameters, times in ((1_000_000, 7), (24_000_000, 5 if scale == "full" else 2)):
            warm = parameters < 24_000_000  # which warms the others, too
            mine, theirs, ratio = side_by_side(partial(ours, parameters), partial(bare, parameters), times, warm=warm)
            name = f"exchange over hosts, {parameters // 1_000_000}M parameters, 2 parties"
            rows.append(Row.of(name, mine, theirs, "s", "bare NVFlare", "<= 1.3", ratio))
    return rows


def tensors(parameters: int) -> dict[str, torch.Tensor]:
    each = parameters // TENSORS
    layout = {f"w{n}": ((each,), torch.float32) for n in range(TENSORS)}
    return flat_views(layout, torch.arange(TENSORS * each, dtype=torch.float32))


def packing() -> Row:
    """Bytes of a parcel there and back, against safetensors' own functions with the same tensors."""
    group = tensors(1_000_000)
    parcel = Parcel({BACKBONE: group})
    ours, theirs, ratio = side_by_side(
        lambda: seconds(lambda: decode(bytearray(encode(parcel)))),
        lambda: seconds(lambda: safetensors.load(safetensors.save(dict(group)))),
        9,
    )
    return Row.of(
        "parcel to bytes and back, 1M parameters", 1e3 * ours, 1e3 * theirs, "ms", "safetensors", "<= 1.3", ratio
    )


@contextmanager
def federation(parties: int, size: int = 16, identities: int = 2) -> Iterator[Deployment]:
    """A federation of real processes; what the benchmark's classes need is allowed at its sites."""
    with TemporaryDirectory() as place:
        names = {f"party-{number:02d}": "trainer" for number in range(parties)}
        deployment = create(Path(place) / "federation", Settings(port=free_port(), parties=names, silence=120.0))
        faces = SyntheticFaces(1, identities, 4, size)
        people = FaceSet(faces, faces.labels, tuple(f"p{n}" for n in range(identities)))
        for name in names:
            write_faceset(deployment.party(name) / "faces", people)
        for kit in deployment.kits().values():
            path = kit / "local" / "resources.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | {"class_allow_list": ["*"]}))
        before = os.environ.get("PYTHONPATH", "")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [ROOT, before]))
        try:
            yield deployment
        finally:
            deployment.console.close()
            down(deployment)
            os.environ["PYTHONPATH"] = before


@contextmanager
def our_exchange(deployment: Deployment) -> Iterator[Exchange]:
    transport = NVFlare(replace(deployment.station, executor=f"{PEER}.EchoParty"))
    transport.begin(lambda party: b"", None, lambda stamp, text: print(text))

    def exchange(parameters: int) -> float:
        group = tensors(parameters)
        stamp = Stamp(1, "train", 1)
        parcels = {party: Parcel({BACKBONE: group}, stamp=stamp) for party in sorted(deployment.roles)[:2]}

        def work() -> None:
            answers = dict(transport.exchange(parcels))
            assert all(isinstance(answer, Parcel) for answer in answers.values()), answers

        return seconds(work)

    try:
        yield exchange
    finally:
        transport.close()


@contextmanager
def bare_exchange() -> Iterator[Exchange]:
    with federation(2) as deployment:
        for name in deployment.roles:
            (deployment.party(name) / "site" / "local" / "privacy.json").unlink()
        up(deployment)
        listener = Listener(deployment.server)
        job = write_job(deployment.folder / "bare", sorted(deployment.roles), 0.0, f"{PEER}.BareParty")
        settings = job / "server" / "config" / "config_fed_server.json"
        text = settings.read_text().replace(RELAY, f"{PEER}.BareController").replace('"silence": 0.0', "")
        settings.write_text(text)
        deployment.console.submit(job)
        link: Link = listener.accept(120)
        link.receive(60)

        def exchange(parameters: int) -> float:
            link.send({"kind": "go", "parameters": parameters})
            header, _ = link.receive(300)
            assert header["sum"] == 4.0, header
            return float(header["seconds"])

        try:
            yield exchange
        finally:
            link.send({"kind": "end"})
            link.close()
            listener.close()


RUN = """
import sys
import fedvisage as fv
table = {
    "faces": {"size": 112, "identities": 2, "images_per_identity": 2},
    "partition": {"held_out": 0.0},
    "backbone": {"name": sys.argv[3]},
    "training": {"batch_size": 2, "steps": 1},
    "method": {"name": "fedpe"},
    "federation": {"rounds": int(sys.argv[4]), "guard": {"norm_multiple": 1e9}},
    "evaluation": {"pairs": 0},
}
fv.run(
    fv.Recipe.model_validate(table), out=sys.argv[2], on=sys.argv[1],
    watch=lambda event: print(event.kind, event.phase, flush=True),
)
"""
WHOLE, JOB = "whole", "job"


def server_memory(deployment: Deployment) -> list[Row]:
    """A federated run of IR-18 over three parties: peak memory at the server's host, in sizes of the model.

    All processes there at one time (the run and what it started, NVFlare's server, its job's process), less what they
    hold in the same run with a tiny network; the same without that subtraction; and the job's process above what it
    held before the first model passed through it. Memory is what a process has for itself alone: pages of files that
    it looks into count.
    """
    model = create_backbone("ir-18", device="meta")
    size = sum(p.numel() * 4 for p in model.parameters()) / 1e6
    base = peaks_of_run(deployment, "ir-tiny", 1)
    full = peaks_of_run(deployment, "ir-18", 2)
    name, against = "server's memory, fedpe, IR-18, 3 hosts", "the model's size"
    return [
        Row.of(name, full[WHOLE] - base[WHOLE], size, "MB", against, "< 6"),
        Row.of(f"{name}: with Python and PyTorch", full[WHOLE], size, "MB", against, "< 6"),
        Row.of(f"{name}: job process alone", full[JOB], size, "MB", against, "< 6"),
    ]


def peaks_of_run(deployment: Deployment, backbone: str, rounds: int) -> dict[str, float]:
    """Most memory (MB) during a run: of all processes of the server's host together, and what its job grew by."""
    with TemporaryDirectory() as out:
        command = [sys.executable, "-c", RUN, str(deployment.folder), f"{out}/run", backbone, str(rounds)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        peaks = {WHOLE: 0.0, JOB: 0.0}
        pids: dict[int, bool] = {}
        before: dict[int, float] = {}
        looked, begun = 0.0, False
        while process.poll() is None:
            if time.monotonic() > looked + 0.5:
                pids = {one.pid: not one.parent for one in running(deployment) if one.host == "server"}
                pids |= dict.fromkeys(children(process.pid), False)
                looked = time.monotonic()
            held = {pid: own_memory(pid) for pid in (process.pid, *pids)}
            peaks[WHOLE] = max(peaks[WHOLE], sum(held.values()))
            begun = begun or b"planned train" in (process.stdout.read() or b"")
            for pid in (pid for pid, job in pids.items() if job):
                start = before.setdefault(pid, held[pid]) if begun else held[pid]
                peaks[JOB] = max(peaks[JOB], held[pid] - start)
            time.sleep(0.05)
        process.stdout.close()
        assert process.returncode == 0, f"the run of {backbone} failed"
        return peaks


def children(pid: int) -> list[int]:
    """Processes that a process started and that still run."""
    with suppress(psutil.NoSuchProcess):
        return [child.pid for child in psutil.Process(pid).children()]
    return []


def own_memory(pid: int) -> float:
    """MB that a process has for itself; 0 where it is gone."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text("utf-8").splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1000
    return 0.0
