"""What leaves a party: the ledger of every parcel, the table of what each method declares, and a party's policy."""

from fedvisage.privacy.ledger import Ledger, read_ledger
from fedvisage.privacy.policy import Policy, Refused
from fedvisage.privacy.table import declared_groups, privacy_table

__all__ = ["Ledger", "Policy", "Refused", "declared_groups", "privacy_table", "read_ledger"]
