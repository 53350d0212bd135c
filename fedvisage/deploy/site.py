"""What runs at a party inside NVFlare: the classes that jobs and a site's configuration name."""

from __future__ import annotations

from pathlib import Path

from fedvisage.deploy.desk import FaceDesk, Invitation
from fedvisage.deploy.party import open_party_folder
from fedvisage.federation.nvflare.executor import Desk, PartyExecutor
from fedvisage.federation.nvflare.filter import PolicyFilter
from fedvisage.privacy import Policy


class FaceParty(PartyExecutor):
    """Answers tasks from the folder around the start-up kit."""

    def open_desk(self, site: Path, name: str, message: bytes) -> Desk:
        """See `PartyExecutor.open_desk`."""
        return FaceDesk(open_party_folder(site.parent), name, Invitation.unpack(message))


class FacePolicy(PolicyFilter):
    """Reads the policy from the folder around the start-up kit."""

    def read_policy(self, site: Path) -> Policy:
        """See `PolicyFilter.read_policy`."""
        return open_party_folder(site.parent).policy
