"""Put on the sites' path by the tests: a party misbehaves as `fault.json` in its folder says.

Only the installed package runs at a site, so a fault cannot be sent there; this plays the broken machine.
"""

import importlib.abc
import importlib.util
import json
import os
import signal
import sys
import time
from pathlib import Path

TARGET = "fedvisage.deploy.desk"


def meet(mine, theirs):
    """Stay at work until another party is at work, too."""
    (mine / "at-work").touch()
    give_up = time.monotonic() + 60
    while not (theirs / "at-work").exists():
        if time.monotonic() > give_up:
            raise RuntimeError(f"never met {theirs.name}")
        time.sleep(0.02)


def break_desk(desk):
    import torch

    whole = desk.FaceDesk.handle

    def handle(self, parcel):
        path = Path(self.folder.folder) / "fault.json"
        faults = json.loads(path.read_text()) if path.exists() else {}
        do = faults.pop(f"{parcel.stamp.phase} {parcel.stamp.round}", None)
        if do is None:
            return whole(self, parcel)
        path.write_text(json.dumps(faults))
        if do == "raise":
            raise RuntimeError("the disk is on fire")
        if do == "hang":
            time.sleep(600)
        if do == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if do.startswith("meet "):
            meet(path.parent, path.parent.parent / do.removeprefix("meet "))
            return whole(self, parcel)
        answer = whole(self, parcel)
        tensors = dict(answer.tensors["backbone"])
        name = next(iter(tensors))
        tensors[name] = torch.full_like(tensors[name], torch.nan) if do == "nan" else tensors[name].reshape(-1)[:-1]
        answer.tensors["backbone"] = tensors
        if do == "slow":
            time.sleep(1)
        return answer

    desk.FaceDesk.handle = handle


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != TARGET:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (run(module), break_desk(module))
        return spec


sys.meta_path.insert(0, Finder())
