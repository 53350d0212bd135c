"""From files (or the built-in generator) to images with identities, and from identities to parties with roles."""

from fedvisage.faces.faceset import Faces, FaceSet, open_faceset, write_faceset
from fedvisage.faces.importing import read_source, write_recordio, write_source
from fedvisage.faces.partition import Partition, make_partition
from fedvisage.faces.sheet import contact_sheet
from fedvisage.faces.synthetic import SyntheticFaces

__all__ = [
    "FaceSet",
    "Faces",
    "Partition",
    "SyntheticFaces",
    "contact_sheet",
    "make_partition",
    "open_faceset",
    "read_source",
    "write_faceset",
    "write_recordio",
    "write_source",
]
