"""Model cards: what a model was made of, how well it does for whom, what left the parties, and what it is not for."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedvisage import chosen
from fedvisage.core.errors import FedVisageError
from fedvisage.core.method import METHODS
from fedvisage.core.parcel import GROUPS, PRIVATE_EMBEDDINGS
from fedvisage.core.phase import VALIDATOR
from fedvisage.core.plugins import load_plugins
from fedvisage.models import MODEL_FILES, Backbone
from fedvisage.recognise import calibration_of
from fedvisage.report.crossings import Crossings, sum_up
from fedvisage.report.folder import Images, Metrics, RunFiles, Score, Share, read_run
from fedvisage.report.words import listed, number, percent, plural, size
from fedvisage.scoring import MEAN

INTENDED = (
    "Research on federated face recognition, and verification of people who know of it and agreed to it, after a test "
    "on the people, cameras and conditions it will meet, with a threshold calibrated there."
)
UNSUITABLE = (
    "Decisions about people without a human who answers for them; searching crowds or scraped photos; guessing "
    "anything but identity; people unlike those it was tested on. A match is a score, not proof."
)


TEST = "test"
"""The phase of learning curves on test people."""


@dataclass(frozen=True)
class Card:
    """A card as Markdown, and its key facts for a model's metadata."""

    markdown: str
    facts: Mapping[str, str]


def make_card(source: str | Path, model: Backbone, title: str) -> Card:
    """The card of a model: a name such as `dlib`, a run's folder, a party's folder or a model file in either.

    The folder may be that of a run's chosen round.
    """
    run, party, earlier = run_of(source)
    about = model.metadata
    lines = [f"# Model card: {title}", ""]
    network = f"`{about.name}`, {about.parameters:,} parameters"
    lines += [
        f"Network {network}; aligned faces of {about.image_size} x {about.image_size} pixels to embeddings of",
        f"{about.embedding_size} numbers, compared by cosine. Licence of the weights: {about.licence or 'not stated'}.",
    ]
    facts: dict[str, Any] = {"intended": INTENDED, "unsuitable": UNSUITABLE}
    if run is None:
        lines += ["", "## Data", "", _unknown(source)]
        facts["data"] = _unknown(source)
    else:
        files = read_run(run)
        crossings = sum_up(run / "ledger.jsonl", files.metrics.absent)
        for heading, text, fact in _of_run(files, crossings, run, party, earlier):
            lines += ["", f"## {heading}", "", *text]
            facts |= fact
    last = run is not None and not party and not earlier
    tested = files.evaluation.models.get(files.recipe.method.name) if last else None
    if model.centres:
        text, fact = _centres(model)
        lines += ["", "## Centres", "", *text]
        facts |= fact
    text, fact = _threshold(source, tested, model.centre)
    lines += ["", "## Threshold", "", *text]
    lines += ["", "## Intended use", "", INTENDED, "", "## Unsuitable use", "", UNSUITABLE, ""]
    facts |= fact
    plain = {f"fedvisage.card.{name}": v if isinstance(v, str) else json.dumps(v) for name, v in facts.items()}
    return Card("\n".join(lines), plain)


def run_of(source: str | Path) -> tuple[Path | None, str | None, bool]:
    """The finished run that a model belongs to, the party where it is one's own, and whether it is a chosen round's."""
    models, party = chosen.models_of(Path(source))
    run = chosen.run_of(models)
    if (run / "evaluation.json").is_file() and (run / "recipe.toml").is_file():
        return run, party, run != models
    return None, None, False


def _unknown(source: str | Path) -> str:
    """What is known of weights that no run of ours made."""
    file = MODEL_FILES.get(str(source))
    if file is not None:
        return f"Weights from the package `{file.package}`, trained on: {file.trained_on}."
    return "Not known: this file lies in no run's folder. Ask whoever gave it to you what and whom it was trained on."


Part = tuple[str, list[str], dict[str, Any]]
"""A heading, its lines, and facts for the metadata."""


def _of_run(files: RunFiles, crossings: Crossings, run: Path, party: str | None, earlier: bool) -> list[Part]:
    results = _results_of_chosen(files, party) if earlier else _results(files, party)
    return [_data(files, run, party), results, _left(files, crossings), _made(files)]


def _pools(files: RunFiles) -> bool:
    """Whether the images were brought together, which only comparators do."""
    name = files.recipe.method.name
    load_plugins(tomllib.loads(files.recipe_text).get("plugins", ()))
    return name in METHODS and METHODS[name].pools


def _results_of_chosen(files: RunFiles, party: str | None) -> Part:
    """Those that the run's learning curves have; a party's own model has none on the way."""
    which = f"round {files.chosen.round}, which validation people chose" if files.chosen else "an earlier round"
    score = _score_at(files.metrics, files.chosen.round) if files.chosen and not party else None
    if score is None:
        line = f"A model of {which}. The run's results are of its last round: score this one with `fedvisage evaluate`."
        return "Results", [line], {}
    lines, facts = _scored(score)
    return "Results", [f"A model of {which}.", "", *lines], facts


def _score_at(metrics: Metrics, round: int) -> Score | None:
    """The global model's score on the test people after a round; None where it was not followed."""
    found: dict[str, dict[str, Any]] = {}
    for (phase, name), points in metrics.curves.items():
        value = dict(points).get(round)
        domain, _, metric = name.rpartition(" ")
        if phase != TEST or value is None or domain == MEAN:
            continue
        of = found.setdefault(domain, {"tar": {}})
        kind, _, far = metric.partition("@")
        if kind == "tar":
            of["tar"][far] = value
        elif kind == "accuracy":
            of["accuracy"] = value
    whole = found.pop("", None)
    return Score.model_validate(whole | {"domains": found}) if whole else None


def _data(files: RunFiles, run: Path, party: str | None) -> Part:
    split = files.partition
    shares = {name: share for name, share in split.parties.items() if share.role != VALIDATOR}
    judges: list[Images | Share] = [
        split.validation,
        *(share for share in split.parties.values() if share.role == VALIDATOR),
    ]
    source = tomllib.loads(files.recipe_text)["faces"]["source"]
    named = listed([f"`{Path(one).name}`" for one in ([source] if isinstance(source, str) else source)])
    people = {
        "public": len(split.public.identities),
        "parties": len({name for share in shares.values() for name in share.identities}),
        "test": len(split.test.identities),
        "validation": len({name for share in judges for name in share.identities}),
    }
    images = sum(len(share.train) for share in shares.values())
    kept = "**were pooled**" if _pools(files) else "stayed with their party"
    lines = [
        f"Faces of {named}. Training: {plural(people['parties'], 'person', 'people')} of "
        f"{plural(len(shares), 'party', 'parties')} ({plural(images, 'image')}), whose images {kept}"
        + (f", and {plural(people['public'], 'public person', 'public people')}." if people["public"] else "."),
        f"Test: {plural(people['test'], 'person', 'people')} nobody trained on.",
    ]
    if people["validation"]:
        others = plural(people["validation"], "other person", "other people")
        lines.append(f"Validation: {others}, who may have chosen settings.")
    if party:
        own = shares[party]
        lines.append(f"This is the own model of `{party}` ({plural(len(own.identities), 'person', 'people')}).")
    return "Data", lines, {"data": {"source": source, "people": people, "parties": len(shares), "images": images}}


def _results(files: RunFiles, party: str | None) -> Part:
    score = files.evaluation.models.get(files.recipe.method.name)
    if party:
        score = (score.parties or {}).get(party) if score is not None else None
    if score is None:
        known = files.metrics.evaluated.get(party or "", {})
        own = [f"{name.removesuffix('_rank1')} model {percent(v, 1)}" for name, v in known.items() if "rank1" in name]
        held = f" Rank 1 on its own held-out images: {listed(own)}." if own else ""
        return "Results", [f"This model was not tested on people nobody trained on.{held}"], {}
    lines, facts = _scored(score)
    ranks = files.metrics.evaluated
    found = [numbers["global_rank1"] for numbers in ranks.values() if "global_rank1" in numbers]
    if found:
        lines.append(f"At the parties rank 1 is between {percent(min(found), 1)} and {percent(max(found), 1)}.")
    return "Results", lines, facts


def _scored(score: Score) -> tuple[list[str], dict[str, Any]]:
    """A score in all and by domain, and how far the domains are apart: in words, and as facts."""
    rows = {"all": score, **score.domains}
    fars = sorted(score.tar, key=float, reverse=True)
    lines = ["| test people | accuracy | " + " | ".join(f"TAR at FAR {far}" for far in fars) + " |"]
    lines.append("|---|---|" + "---|" * len(fars))
    for name, one in rows.items():
        cells = [percent(one.accuracy), *(percent(one.tar.get(far)) for far in fars)]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    gaps = _gaps(score.domains, fars)
    if gaps:
        said = listed([f"{name} {100 * gap:.2f} points" for name, gap in gaps.items()])
        lines += ["", f"Between the best and the worst of {len(score.domains)} groups: {said}."]
    else:
        lines += ["", "One group was tested: how far results differ between groups of people is not known."]
    told = {name: _numbers(one) for name, one in rows.items()}
    return lines, {"results": told, "gaps": {name: round(gap, 6) for name, gap in gaps.items()}}


def _numbers(score: Score) -> dict[str, float]:
    rates = {f"tar@{far}": value for far, value in score.tar.items()} | {"accuracy": score.accuracy}
    return {name: round(value, 6) for name, value in rates.items() if value is not None and math.isfinite(value)}


def _gaps(domains: Mapping[str, Score], fars: Sequence[str]) -> dict[str, float]:
    """By measure: the difference between the best and the worst group."""
    if len(domains) < 2:
        return {}
    measures: dict[str, list[float | None]] = {"accuracy": [one.accuracy for one in domains.values()]}
    measures |= {f"TAR at FAR {far}": [one.tar.get(far) for one in domains.values()] for far in fars}
    known = {
        name: [value for value in values if value is not None and math.isfinite(value)]
        for name, values in measures.items()
    }
    return {name: max(values) - min(values) for name, values in known.items() if len(values) == len(domains)}


def _left(files: RunFiles, crossings: Crossings) -> Part:
    if _pools(files):
        line = f"**All training images**: `{files.recipe.method.name}` pools them, to compare federated models with."
        return "What left the parties", [line], {"left": {"groups": ["images"]}}
    left = [group for group in GROUPS if group in crossings.groups("up")]
    lines = [
        f"{size(crossings.total_up)} left {plural(len(crossings.left), 'party', 'parties')}, at most "
        f"{size(crossings.most_up)} each: {listed([f'`{group}` ({GROUPS[group]})' for group in left]) or 'nothing'}.",
        "Images never left. What weights may reveal about the people they were trained on was not measured.",
    ]
    if PRIVATE_EMBEDDINGS in left:
        lines.append("**Class embeddings of private people left their party: face templates in all but name.**")
    return "What left the parties", lines, {"left": {"groups": left, "bytes": crossings.total_up}}


def _made(files: RunFiles) -> Part:
    recipe, place = files.recipe, files.environment
    packages = ", ".join(f"{name} {version}" for name, version in place.get("packages", {}).items())
    line = f"Recipe `{recipe.name}`, method `{recipe.method.name}`, {number(recipe.federation.rounds)} rounds, seed "
    line += f"{recipe.seed}. {packages}."
    return "How it was made", [line], {"method": recipe.method.name, "recipe": recipe.name, "seed": recipe.seed}


def _centres(model: Backbone) -> tuple[list[str], dict[str, Any]]:
    """The centres that a model carries, and the one that its embeddings are about."""
    people = {name: centre.people for name, centre in sorted(model.centres.items())}
    lines = ["| centre | people |", "|---|---|", *(f"| `{name}` | {count:,} |" for name, count in people.items()), ""]
    if model.centre:
        lines.append(f"Embeddings are about the centre `{model.centre}`.")
    else:
        lines.append("Embeddings are about none of them unless it is named (`--centre`).")
    lines.append("A centre is a mean over people like those; on people unlike them it can do harm.")
    return lines, {"centres": people} | ({"centre": model.centre} if model.centre else {})


def _threshold(source: str | Path, score: Score | None, centre: str) -> tuple[list[str], dict[str, Any]]:
    """The calibrated thresholds, or else those of the run's own test, which are about no centre."""
    try:
        known = calibration_of(source, centre)
        rates, where = {f"{rate:g}": value for rate, value in known.thresholds.items()}, known.faces
        where += f" ({known.impostor_pairs:,} pairs of different people)"
    except FedVisageError:
        own = score.thresholds if score and not centre else {}
        rates = {far: t for far, t in own.items() if math.isfinite(t)}
        where = "the run's test people"
    if not rates:
        return ["Not calibrated: measure it with `fedvisage calibrate` on people like those it will meet."], {}
    lines = ["| false-match rate | cosine above which two faces match |", "|---|---|"]
    lines += [f"| {rate} | {value:.4f} |" for rate, value in rates.items()]
    lines += ["", f"Measured on {where}; other people and cameras need thresholds of their own."]
    return lines, {"threshold": {"on": where, "by_false_match_rate": {rate: round(v, 6) for rate, v in rates.items()}}}
