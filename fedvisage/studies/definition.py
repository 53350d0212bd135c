"""What a study is: a TOML file below `studies/` with rows, columns, scales and the paper's numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from fedvisage.config import Section, read_toml, validated
from fedvisage.core.errors import FedVisageError, nearest
from fedvisage.studies.drawn import DRAWN, LAPTOP, with_drawn_people

TEST = "test"
TRAINING = "training"
SCALES = (LAPTOP, "trained", "paper", DRAWN, "smoke")
BASE = "_base.toml"
"""Beside the studies of a paper: what they have in common."""


class Measure(Section):
    """What a column is measured by at some scale."""

    what: str
    """In words: on whom, and what it stands for."""
    name: str = ""
    """What the column is called at this scale, so that a stand-in does not go by the original's name."""
    metric: str = "accuracy"
    """`accuracy`, or a rate such as `tar@0.01`; a protocol's own name of it, such as `TAR@0.01`; a group of parties."""
    protocol: str = TEST
    """The run's own test people, `training` for the last loss of a group of parties, or a protocol of `evaluate`."""
    data: str = ""
    """The face set of the protocol: a folder, or `@name` at the data root."""
    of: str = ""
    """Which of a run's models, as the row says."""

    @property
    def key(self) -> str:
        """Its name in a cell's result."""
        of = self.of and of_model(self.of)
        return " ".join(part for part in (self.protocol, self.data, self.metric, of) if part)


def of_model(of: str) -> str:
    """How the keys of scores end that belong to another model than the run's."""
    return f"of {of}"


class Column(Section):
    """A number of the table: what the paper calls it, and what it is measured by at each scale."""

    name: str
    by: Mapping[str, Measure]
    better: Literal["higher", "lower"] = "higher"
    unit: Literal["percent", "number"] = "percent"
    """Shares are shown in percent."""

    def head(self, scale: str) -> str:
        """What our numbers are shown under at a scale; the paper's name is for the paper's numbers."""
        return self.by[scale].name or self.name

    @property
    def factor(self) -> int:
        """From what cells keep to what is shown."""
        return 100 if self.unit == "percent" else 1


class Shown(Section):
    """What a row says of itself at one scale where that differs."""

    label: str = ""
    x: float | None = None
    diverged: str = ""
    """Why its runs end without a model; they are begun only where the row is asked for by name."""


class Erratum(Section):
    """What is wrong with a number as the paper prints it."""

    words: str
    counts: bool = True
    """Whether it can be compared with others all the same."""


class Row(Section):
    """A line of the table, or a point or bar of the figure."""

    name: str
    label: str
    group: str = ""
    """Rows of one group are compared with each other."""
    recipe: Mapping[str, Any] = Field(default_factory=dict)
    at: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict)
    """What it changes at one scale only."""
    of: Literal["", "start", "global", "local"] = ""
    """Which model of the run is scored: the start, or by the personal protocol another than each party's own."""
    paper: Mapping[str, float] = Field(default_factory=dict)
    """The paper's numbers by column, in percent."""
    errata: Mapping[str, Erratum] = Field(default_factory=dict)
    """By column."""
    note: str = ""
    x: float | None = None
    """Where the row stands on the horizontal axis of a figure of lines."""
    line: str = ""
    """The line or bar series of the figure that the row belongs to; its group by default."""
    shown: Mapping[str, Shown] = Field(default_factory=dict)
    """Its label and `x` by scale, and whether its runs diverge."""

    def diverges(self, scale: str) -> bool:
        """Whether its runs end without a model."""
        return scale in self.shown and bool(self.shown[scale].diverged)

    def at_scale(self, scale: str) -> Row:
        """The row with the label, `x` and note that it has at this scale."""
        own = self.shown.get(scale, Shown())
        note, x = own.diverged or self.note, self.x if own.x is None else own.x
        return self.model_copy(update={"label": own.label or self.label, "x": x, "note": note})


class Figure(Section):
    """How the rows are drawn: lines over each row's `x`, or bars side by side.

    Of rows with a searched weighting: `weights`, how each party counts over the rounds, or `map`, the triangles of
    validation scores of three parties.
    """

    kind: Literal["lines", "bars", "weights", "map", "alike"] = "lines"
    x: str = ""
    """What the horizontal axis is, in words."""
    log: bool = False
    """Whether the horizontal axis is logarithmic."""
    ours: bool = False
    """Whether the paper has no such figure."""
    relative_to: str = ""
    """A row whose value is taken as nought, so that bars show differences."""


class Variant(Section):
    """A way to run every row once more, such as with other test people; a seed's score is the mean over them."""

    name: str
    recipe: Mapping[str, Any] = Field(default_factory=dict)


class Claim(Section):
    """What the paper says without a number: on this column one row is better than another."""

    column: str
    better: str
    worse: str
    words: str = ""


class Tries(Section):
    """How settings were chosen at some scale: the same learning rates tried for every row that is trained."""

    rates: tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...] = ()
    """Multiples of a row's own learning rate; what validation people like best after the last round is taken."""
    seeds: Annotated[int, Field(ge=1)] = 1
    """How many seeds, from 1 on, they are tried under; the mean over them and over variants decides for all runs."""
    alone: bool = False
    """Every run decides for itself instead: where the validation people of one are test people of another."""
    by: str = ""
    """The score on validation people that chooses rates and rounds, such as `tar@0.01`; otherwise each column's own."""
    note: str = ""
    """What was tried beyond that, for which rows."""

    @property
    def under(self) -> str:
        """The seeds in words."""
        if self.alone:
            return "every seed"
        return "the first seed" if self.seeds == 1 else f"the first {self.seeds} seeds"


class Study(Section):
    """A table or figure."""

    title: str
    source: str
    note: str = ""
    missing: tuple[str, ...] = ()
    """What could not be reproduced here at any scale, and why; a sentence each."""
    missing_at: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)
    """What could not be reproduced at single scales."""
    disagreements: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)
    """By scale: where our order is not the paper's, and what was tested about why; a sentence or two each."""
    tries: Mapping[str, Tries] = Field(default_factory=dict)
    """By scale."""
    figure: Figure | None = None
    claims: tuple[Claim, ...] = ()
    columns: tuple[Column, ...]
    recipe: Mapping[str, Any] = Field(default_factory=dict)
    scales: Mapping[str, Mapping[str, Any]]
    variants: tuple[Variant, ...] = (Variant(name=""),)
    variants_are: str = "variants"
    """What several of them are called, such as `halves`."""
    leaves_out: tuple[str, ...] = ()
    """Scales of the paper's other studies that this one does not have."""
    unmeasured: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)
    """By scale: columns of the paper's other studies that this one does not have there."""
    rows: tuple[Row, ...]

    def at_scale(self, scale: str) -> Study:
        """The study with its rows as they are shown at this scale."""
        return self.model_copy(update={"rows": tuple(row.at_scale(scale) for row in self.rows)})

    @property
    def draws(self) -> str:
        """The kind of its figure; nothing where it is a table."""
        return self.figure.kind if self.figure else ""

    @property
    def is_ours(self) -> bool:
        """Whether it is no paper's: it has no paper scale."""
        return "paper" not in self.scales

    def chooses_by(self, scale: str) -> str:
        """The score on validation people that chooses a run's round; empty where each column has its own."""
        return self.tries[scale].by if scale in self.tries else ""

    def measured(self, scale: str) -> list[Column]:
        """The columns that this scale has."""
        return [column for column in self.columns if scale in column.by]

    def measures(self, scale: str, row: str) -> dict[str, Measure]:
        """By column: what a row is measured by, as far as this scale can."""
        of = next(one.of for one in self.rows if one.name == row)
        found = {column.name: column.by[scale] for column in self.measured(scale)}
        return {name: measure.model_copy(update={"of": of}) for name, measure in found.items()}


def home() -> Path:
    """The folder of studies: beside the package in a source tree, inside it when installed."""
    package = Path(__file__).parents[1]
    return next(place for place in (package.parent / "studies", package / "study_files") if place.is_dir())


def list_studies(folder: Path | None = None) -> list[str]:
    """Names of the studies, such as `fedgc/table-5`."""
    folder = folder or home()
    paths = (path for path in folder.glob("*/*.toml") if path.name != BASE)
    return sorted(str(path.relative_to(folder).with_suffix("")) for path in paths)


def load_study(name: str, folder: Path | None = None) -> Study:
    """The study `name`."""
    folder = folder or home()
    known = list_studies(folder)
    if name not in known:
        raise FedVisageError(f"no study '{name}': {nearest(name, known)}")
    path = folder / f"{name}.toml"
    base = path.with_name(BASE)
    table = merged(read_toml(base) if base.exists() else {}, read_toml(path))
    left_out = table.get("leaves_out", ())
    table["scales"] = {scale: own for scale, own in table.get("scales", {}).items() if scale not in left_out}
    table["columns"] = [_as_measured(column, table.get("unmeasured", {})) for column in table.get("columns", ())]
    study = validated(Study, with_drawn_people(table), f"study '{name}'")
    tables = (
        study.scales,
        study.tries,
        study.disagreements,
        study.unmeasured,
        study.missing_at,
        *(table for row in study.rows for table in (row.at, row.shown)),
    )
    named = [scale for scales in tables for scale in scales]
    unknown = [scale for scale in named if scale not in SCALES]
    if unknown:
        raise FedVisageError(f"study '{name}': unknown scale '{unknown[0]}': {nearest(unknown[0], SCALES)}")
    _check_names(name, study)
    return study


def _as_measured(column: Mapping[str, Any], unmeasured: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """A column without the scales at which it is not measured."""
    by = {scale: own for scale, own in column["by"].items() if column["name"] not in unmeasured.get(scale, ())}
    return dict(column) | {"by": by}


def _check_names(name: str, study: Study) -> None:
    """Refuse numbers and claims about rows and columns that are not there."""
    rows, columns = [row.name for row in study.rows], [column.name for column in study.columns]
    said = [("row", part, rows) for claim in study.claims for part in (claim.better, claim.worse)]
    said += [("column", claim.column, columns) for claim in study.claims]
    said += [("column", column, columns) for row in study.rows for column in row.paper]
    said += [("column", column, columns) for names in study.unmeasured.values() for column in names]
    said += [("number of", column, [*row.paper]) for row in study.rows for column in row.errata]
    if study.figure and study.figure.relative_to:
        said.append(("row", study.figure.relative_to, rows))
    for kind, part, known in said:
        if part not in known:
            raise FedVisageError(f"study '{name}' speaks of a {kind} '{part}': {nearest(part, known)}")
    for scale, tries in study.tries.items():
        if tries.rates and not tries.by:
            raise FedVisageError(f"study '{name}' tries learning rates at {scale} scale, but does not say `by` what")
    twice = {row for row in rows if rows.count(row) > 1}
    if twice:
        raise FedVisageError(f"study '{name}' has two rows '{min(twice)}'")
    for scale in study.scales:
        heads = [column.head(scale) for column in study.measured(scale)]
        twice = {head for head in heads if heads.count(head) > 1}
        if twice:
            raise FedVisageError(f"study '{name}' shows two columns as '{min(twice)}' at {scale} scale")


def merged(*tables: Mapping[str, Any]) -> dict[str, Any]:
    """Tables laid over each other, the later ones on top; a part that is named anew is replaced whole."""
    result: dict[str, Any] = {}
    for table in tables:
        for key, value in table.items():
            below = result.get(key)
            whole = key in ("method", "weighting", "regulariser") and "name" in value
            if isinstance(below, dict) and isinstance(value, Mapping) and not whole:
                value = merged(below, value)
            result[key] = value
    return result
