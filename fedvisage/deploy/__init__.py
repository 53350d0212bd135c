"""A federation of real hosts as folders: who takes part, their certificates, their processes, a party's own folder."""

from fedvisage.deploy.extra import require_nvflare
from fedvisage.deploy.folder import Deployment, open_deployment
from fedvisage.deploy.party import PartyFolder, open_party_folder

__all__ = ["Deployment", "PartyFolder", "open_deployment", "open_party_folder", "require_nvflare"]
