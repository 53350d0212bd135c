"""The field's data sets as face sets: each format a reader, one way to write, and a report of what was left out."""

from fedvisage.faces.importing.bins import parse_bin
from fedvisage.faces.importing.finding import PathMapping
from fedvisage.faces.importing.formats import FORMATS, detect, read_source
from fedvisage.faces.importing.recordio import RecordFile, read_recordio, write_recordio
from fedvisage.faces.importing.source import Source
from fedvisage.faces.importing.writing import Report, Selection, write_source

__all__ = [
    "FORMATS",
    "PathMapping",
    "RecordFile",
    "Report",
    "Selection",
    "Source",
    "detect",
    "parse_bin",
    "read_recordio",
    "read_source",
    "write_recordio",
    "write_source",
]
