"""What leaves a party: the ledger of every parcel, and the table of what each method declares."""

from fedvisage.privacy.ledger import Ledger, read_ledger
from fedvisage.privacy.table import declared_groups, privacy_table

__all__ = ["Ledger", "declared_groups", "privacy_table", "read_ledger"]
