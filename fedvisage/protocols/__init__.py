"""Evaluation protocols by name: the lists of a face set and a model or an embeddings file become a table of metrics."""

from __future__ import annotations

from fedvisage.protocols.alike import alike
from fedvisage.protocols.personal import personal
from fedvisage.protocols.progress import recovered, sampled
from fedvisage.protocols.protocol import PROTOCOLS, Options, Protocol, Result, run
from fedvisage.protocols.pseudo_labels import pseudo_labels
from fedvisage.protocols.search import fedfrbench, megaface, query_gallery
from fedvisage.protocols.statistics import own_statistics
from fedvisage.protocols.subject import Data, Subject, embed_to_file, model_digest, open_subject
from fedvisage.protocols.templates import ijb, ijb_means, ijba, ijba_means
from fedvisage.protocols.verification import all_pairs, lfw, rfw

__all__ = [
    "PROTOCOLS",
    "Data",
    "Options",
    "Protocol",
    "Result",
    "Subject",
    "alike",
    "all_pairs",
    "embed_to_file",
    "fedfrbench",
    "ijb",
    "ijb_means",
    "ijba",
    "ijba_means",
    "lfw",
    "megaface",
    "model_digest",
    "open_subject",
    "own_statistics",
    "personal",
    "pseudo_labels",
    "query_gallery",
    "recovered",
    "rfw",
    "run",
    "sampled",
]
