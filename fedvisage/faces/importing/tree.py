"""The files of a data set, in a folder or a zip archive; nothing outside it can be named, and archives stay packed."""

from __future__ import annotations

import os
import posixpath
import zipfile
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Protocol

from fedvisage.core.errors import FedVisageError
from fedvisage.faces.decoding import MOST_BYTES

MOST_TEXT = 4_000_000_000


def safe_path(text: str, where: str) -> str:
    """A path below the data set's folder, in its shortest form; `where` says who names it."""
    path = text.strip().replace("\\", "/")
    parts = path.split("/")
    if not path or path.startswith("/") or ".." in parts or "\0" in path or ":" in parts[0]:
        raise FedVisageError(f"{where} names '{text.strip()[:80]}', which leads out of the folder")
    return posixpath.normpath(path)


def refuse_pointer(path: Path, head: bytes) -> None:
    """Refuse a file that begins like the pointers that git-LFS leaves where a file was not fetched."""
    if head.startswith(b"version https://git-lfs"):
        raise FedVisageError(f"{path} is a git-LFS pointer, not the file itself: fetch it with 'git lfs pull'")


class Tree(Protocol):
    """Files by their path relative to the top, with slashes."""

    @property
    def name(self) -> str:
        """What to call it in messages."""
        ...

    @property
    def files(self) -> list[str]:
        """Every file, sorted."""
        ...

    def read(self, path: str, most: int = MOST_BYTES) -> bytes:
        """A file's content; refused where it is larger than `most` bytes."""
        ...


class Folder:
    """A folder on disk."""

    def __init__(self, root: Path) -> None:
        self.root, self.name = root, str(root)
        self._prefix = f"{root}{os.sep}"

    @cached_property
    def files(self) -> list[str]:
        """Every file, sorted."""
        try:
            return sorted(self._walk())
        except OSError as error:
            raise FedVisageError(f"cannot look into {error.filename}: {error.strerror}") from None

    def _walk(self) -> Iterator[str]:
        """Links to folders are followed, each folder once."""
        waiting, linked = [""], {os.path.realpath(self.root)}
        while waiting:
            below = waiting.pop()
            with os.scandir(self._prefix + below) as entries:
                for entry in entries:
                    if not entry.is_dir():
                        yield below + entry.name
                    elif not entry.is_symlink() or (target := os.path.realpath(entry.path)) not in linked:
                        waiting.append(f"{below}{entry.name}/")
                        if entry.is_symlink():
                            linked.add(target)

    def read(self, path: str, most: int = MOST_BYTES) -> bytes:
        """A file's content; refused where it is larger than `most` bytes."""
        try:
            file = os.open(self._prefix + path, os.O_RDONLY)
            try:
                length = os.fstat(file).st_size
                if length > most:
                    raise FedVisageError(f"{path} is larger than {most:,} bytes")
                data = os.read(file, length)
                while len(data) < length and (more := os.read(file, length - len(data))):
                    data += more
            finally:
                os.close(file)
        except (OSError, ValueError) as error:
            raise FedVisageError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
        return data


class Archive:
    """A zip archive, read in place."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        try:
            with path.open("rb") as file:
                refuse_pointer(path, file.read(64))
            self._zip = zipfile.ZipFile(path)
            entries = [entry for entry in self._zip.infolist() if not entry.is_dir()]
        except Exception as error:  # a damaged archive may raise anything, such as IndexError for a file without a name
            raise FedVisageError(f"cannot read the archive {path}: {error}") from None
        self._entries = {safe_path(entry.filename, self.name): entry for entry in entries}

    @cached_property
    def files(self) -> list[str]:
        """Every file, sorted."""
        return sorted(self._entries)

    def read(self, path: str, most: int = MOST_BYTES) -> bytes:
        """A file's content; refused where it is larger than `most` bytes."""
        if path not in self._entries:
            raise FedVisageError(f"cannot read {path}: not in {self.name}")
        if self._entries[path].file_size > most:
            raise FedVisageError(f"{path} is larger than {most:,} bytes")
        try:
            with self._zip.open(self._entries[path]) as file:
                return file.read(most)
        except Exception as error:
            raise FedVisageError(f"cannot read {path}: {error}") from None


def open_tree(path: Path) -> Tree:
    """The files of a folder, or of a zip archive."""
    if path.is_dir():
        return Folder(path)
    if path.suffix.lower() == ".zip" and path.is_file():
        return Archive(path)
    raise FedVisageError(f"{path} is neither a folder nor a zip archive" if path.exists() else f"there is no {path}")


def text_of(tree: Tree, path: str) -> str:
    """A text file's content."""
    try:
        return tree.read(path, MOST_TEXT).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise FedVisageError(f"{path} is not text") from None
