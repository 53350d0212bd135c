"""The page of a run: everything gathered, put through one template, written as one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedvisage.core.phase import VALIDATOR
from fedvisage.report import curves, people_map, results, separation, tables, verdict, weighting, words
from fedvisage.report.crossings import Crossings, sum_up
from fedvisage.report.folder import RunFiles, existing, read_run
from fedvisage.report.rendering import write_page

PAGE = "report.html"


def write_report(folder: Path) -> Path:
    """Write report.html from the files of a run folder: self-contained, light and dark."""
    run = read_run(folder)
    crossings = sum_up(existing(folder, "ledger.jsonl"), run.metrics.absent)
    path = folder / PAGE
    write_page(path, "page.html.j2", _contents(run, crossings))
    return path


def _contents(run: RunFiles, crossings: Crossings) -> dict[str, Any]:
    """What the template is filled with; a section that is None or empty is left out."""
    models = results.scored_models(run)
    return {
        "recipe": run.recipe,
        "summary": _summary(run, models),
        "caution": "" if run.evaluation.answer else _caution(run),
        "warnings": run.evaluation.warnings,
        "answer": verdict.answer_table(run, models),
        "domains": [(name, one["sentence"]) for name, one in run.evaluation.answers.items()],
        "facts": _facts(run, crossings),
        "comparison": results.compare(run, models),
        "curves": results.learning_curves(run, models),
        "chosen": _chosen(run),
        "rates": curves.rate_curves(models),
        "people_map": people_map.people_figures(run.folder),
        "separation": separation.separation_figures(run),
        "weighting": weighting.weighting_figures(run),
        "parties": tables.party_results(run),
        "histograms": results.score_histograms(run, models),
        "exchanges": tables.exchanges(run, crossings),
        "failures": run.failures,
        "people": tables.partition(run),
        "recipe_text": run.recipe_text,
        "environment": tables.environment(run),
    }


def _caution(run: RunFiles) -> str:
    """How much of the accuracy is chance."""
    own, test = run.evaluation.models.get(run.recipe.method.name), run.evaluation.test
    return words.caution(own.accuracy if own else None, test.get("pairs", 0), test.get("identities", 0))


def _summary(run: RunFiles, models: list[words.Model]) -> str:
    """The outcome in one sentence, from whatever was measured."""
    if run.evaluation.answer:
        return str(run.evaluation.answer["sentence"])
    method = run.recipe.method.name
    own = next((model for model in models if model.name == method), None)
    others = [model for model in models if model.name != method]
    said = words.outcome(results.subject(method), own.score, others) if own else ""
    if said:
        return said
    rank = run.metrics.evaluated_mean.get("global_rank1")
    if rank is not None:
        return (
            f"At the parties the global model puts the right person first for {words.percent(rank, 1)} of the held-out "
            "images (weighted average over the parties); no identities were kept apart for a test."
        )
    rounds = words.plural(run.recipe.federation.rounds, "round")
    parties = words.plural(len(run.partition.parties), "party", "parties")
    return f"{rounds} with {parties} are done; no identities were kept apart for a test."


def _chosen(run: RunFiles) -> str:
    """Which round validation people chose, where its models are kept."""
    found = run.chosen
    if found is None:
        return ""
    last = ", the last" if found.round == run.recipe.federation.rounds else ""
    return (
        f"Validation people chose round {found.round}{last} ({found.by} of {words.percent(found.score, 1)}); "
        "its models are in the run's folder, under chosen/."
    )


def _rounds(run: RunFiles) -> str:
    planned, ended = words.number(run.recipe.federation.rounds), run.evaluation.ended.get(run.recipe.method.name)
    return f"{words.number(ended['round'])} of {planned}" if ended else planned


def _facts(run: RunFiles, crossings: Crossings) -> list[tuple[str, str]]:
    shares = [share for share in run.partition.parties.values() if share.role != VALIDATOR]
    validators = len(run.partition.parties) - len(shares)
    missing = sum(map(len, run.metrics.absent.values()))
    return [
        ("Parties", words.number(len(shares))),
        *([("Validators", words.number(validators))] if validators else []),
        ("Rounds", _rounds(run)),
        ("Private training images", words.number(sum(len(share.train) for share in shares))),
        ("Left a party, at most", words.size(crossings.most_up)),
        ("Answers missing", words.number(missing)),
        ("Backbone", run.recipe.backbone.name),
    ]
