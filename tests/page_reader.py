"""Pages read back as a browser would."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path


class Page(HTMLParser):
    """A page's tags, visible text and tables."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.tables: dict[str, list[list[str]]] = {}
        """Rows of cells by the label of the box around the table."""
        self._label, self._cell, self._silent = "", False, 0
        self.feed(source)
        self.text = " ".join(self.text.split())

    @staticmethod
    def read(path: Path) -> Page:
        return Page(path.read_text("utf-8"))

    @property
    def ids(self) -> set[str]:
        return {str(attributes["id"]) for _, attributes in self.tags if "id" in attributes}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        if tag == "div" and attributes.get("role") == "region":
            self._label = str(attributes["aria-label"])
            self.tables[self._label] = []
        self._silent += tag == "style"
        if tag == "tr":
            self.tables[self._label].append([])
        if tag in ("th", "td"):
            self._cell = True
            self.tables[self._label][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self._silent -= tag == "style"
        if tag in ("th", "td"):
            self._cell = False
            row = self.tables[self._label][-1]
            row[-1] = " ".join(row[-1].split())

    def handle_data(self, data: str) -> None:
        if self._silent:
            return
        self.text += data + " "
        if self._cell:
            self.tables[self._label][-1][-1] += data + " "
