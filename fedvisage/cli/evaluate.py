"""`fedvisage evaluate`: score models by the field's protocols; `fedvisage embed`: write embeddings for later."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from fedvisage.cli.output import Json, progress, show_json, show_table, size
from fedvisage.cli.recognise import Centre
from fedvisage.core.errors import FedVisageError, nearest
from fedvisage.evaluation.rates import Convention
from fedvisage.evaluation.verification import Rule
from fedvisage.models import NO_CENTRE, OF_PAIRS
from fedvisage.protocols import PROTOCOLS, Data, Options, Result, Subject, embed_to_file, open_subject, run
from fedvisage.protocols.protocol import CONVENTION, RULE

DEFAULT = "all-pairs"
NOISE = ("insightface", "megaface", "drop", "keep")
WHICH = ("own", "local", "global", "start")

Flip = Annotated[
    bool | None,
    typer.Option("--flip/--no-flip", help="Add the embedding of the mirrored image; by protocol if left out."),
]


def evaluate_command(
    models: Annotated[
        list[str], typer.Argument(help="Model files, run or party folders, embeddings files, or names such as dlib.")
    ],
    data: Annotated[
        list[Path] | None, typer.Option(help="A folder of faces, as `fedvisage data` writes it; repeatable.")
    ] = None,
    protocol: Annotated[
        list[str] | None, typer.Option(help=f"One of {', '.join(PROTOCOLS)}; repeatable. Default: {DEFAULT}.")
    ] = None,
    far: Annotated[list[float] | None, typer.Option(help="False-accept rate; repeatable.")] = None,
    fpir: Annotated[list[float] | None, typer.Option(help="False-positive identification rate; repeatable.")] = None,
    rank: Annotated[list[int] | None, typer.Option(help="Rank of closed-set identification; repeatable.")] = None,
    flip: Flip = None,
    keep_norm: Annotated[
        bool, typer.Option("--norm/--no-norm", help="Templates: images keep their embedding's length (N1, N0).")
    ] = True,
    media: Annotated[
        bool, typer.Option("--media/--no-media", help="Templates: the images of a medium count once, or each.")
    ] = True,
    detector: Annotated[
        bool | None, typer.Option("--detector-score/--no-detector-score", help="Templates: weigh images (D1, D0).")
    ] = None,
    rule: Annotated[str | None, typer.Option(help=f"Accuracy: {', '.join(get_args(Rule))}. Default: {RULE}.")] = None,
    convention: Annotated[
        str | None, typer.Option(help=f"TAR at FAR: {', '.join(get_args(Convention))}. Default: {CONVENTION}.")
    ] = None,
    centre: Annotated[
        str | None,
        typer.Option(
            help=f"One of the models' centres by name, {NO_CENTRE}, or {OF_PAIRS} for the mean of the test pairs."
        ),
    ] = None,
    noise: Annotated[str, typer.Option(help=f"Noise lists: {', '.join(NOISE)}.")] = "insightface",
    which: Annotated[str, typer.Option(help=f"Personal: each party's model, or {', '.join(WHICH[1:])}.")] = "own",
    pairs: Annotated[int, typer.Option(min=0, help="Pairs drawn by the protocol all-pairs.")] = 3000,
    of_run: Annotated[
        Path | None,
        typer.Option("--run", help="Personal, from an embeddings file: the run, or a party's folder in it."),
    ] = None,
    resamples: Annotated[
        int, typer.Option(min=0, help="Pairs: 95% intervals from so many resamples of the people, such as 1000.")
    ] = 0,
    curves: Annotated[bool, typer.Option(help="Pairs: the points of the ROC and DET curves, with --json.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of everything drawn.")] = 1,
    as_json: Json = False,
) -> None:
    """Score models by one or more protocols. Each image is embedded once per model."""
    for what, value, known in (
        ("rule", rule, get_args(Rule)),
        ("convention", convention, get_args(Convention)),
        ("noise", noise, NOISE),
        ("which", which, WHICH),
    ):
        if value is not None and value not in known:
            raise FedVisageError(f"unknown {what} '{value}': {nearest(value, known)}")
    if curves and not as_json:
        raise FedVisageError("--curves needs --json: a table has no room for the points")
    options = Options(
        fars=tuple(far) if far else None,
        fpirs=tuple(fpir) if fpir else None,
        ranks=tuple(rank) if rank else None,
        flip=flip,
        keep_norm=keep_norm,
        media=media,
        detector=detector,
        rule=rule,  # type: ignore[arg-type]
        convention=convention,  # type: ignore[arg-type]
        centre=centre,
        noise=noise,  # type: ignore[arg-type]
        which=which,  # type: ignore[arg-type]
        pairs=pairs,
        run=of_run,
        resamples=resamples,
        curves=curves,
        seed=seed,
    )
    for name in protocol or [DEFAULT]:
        PROTOCOLS[name].check(name, options)
    work = _work(protocol or [DEFAULT], data or [])
    subjects = [open_subject(path) for path in models]
    for subject in subjects:
        subject.watch = lambda what, total: progress(what, total, as_json)
    done = [(subject, name, where, run(name, where, subject, options)) for subject in subjects for name, where in work]
    if as_json:
        rows = [
            {"model": s.path, "backbone": s.backbone, "protocol": name, "data": _named(where), **result.table()}
            | {"centre": "pairs, from test people" if centre == OF_PAIRS else s.centre or NO_CENTRE}
            for s, name, where, result in done
        ]
        show_json({"results": rows, "seed": seed})
        return
    for name in dict.fromkeys(name for name, _ in work):
        _show(name, [(s, where, result) for s, other, where, result in done if other == name])


def embed_command(
    model: Annotated[str, typer.Argument(help="A model file, a run's or a party's folder, or a name such as dlib.")],
    data: Annotated[Path, typer.Option(help="A folder of faces, as `fedvisage data` writes it.")],
    out: Annotated[Path, typer.Option(help="Embeddings file to write (.safetensors).")],
    flip: Annotated[bool, typer.Option("--flip/--no-flip", help="Add the embedding of the mirrored image.")] = True,
    centre: Centre = NO_CENTRE,
    as_json: Json = False,
) -> None:
    """Write the embeddings of every image of a folder, with identities and the model's digest."""
    faces = Data(data)
    faces.faces  # noqa: B018 - the faces are looked for before the model is read
    subject = open_subject(model)
    subject.use_centre(centre)
    subject.watch = lambda what, total: progress(what, total, as_json)
    about = embed_to_file(subject, faces, out, flip)
    count, width = len(faces.faces), subject.model.metadata.embedding_size
    if as_json:
        table = {"file": str(out), "embeddings": count, "dimensions": width, "backbone": about.model}
        show_json(table | {"digest": about.digest, "flip": flip, "centre": centre or NO_CENTRE})
    else:
        print(f"{out}: {count:,} embeddings of {width} dimensions by {about.model}, {size(out.stat().st_size)}")


def _work(names: list[str], folders: list[Path]) -> list[tuple[str, Data]]:
    """Which protocol on which folder: one folder serves all protocols, one protocol all folders, else they pair up."""
    for name in names:
        PROTOCOLS[name]
    free = [name for name in names if not PROTOCOLS[name].needs_run]
    sets = [Data(folder) for folder in folders]
    for one in sets:
        one.faces  # noqa: B018 - a mistake in a folder's name is found before any work is done
    if free and not sets:
        raise FedVisageError(f"the protocol '{free[0]}' needs --data, a folder of faces")
    if len(free) > 1 and len(sets) not in (1, len(free)):
        raise FedVisageError(f"{len(free)} protocols and {len(sets)} folders: give one folder for all, or one for each")
    if len(sets) == 1 or len(free) == 1:
        pairs = [(name, where) for name in free for where in sets]
    else:
        pairs = list(zip(free, sets, strict=True))
    return pairs + [(name, Data(Path())) for name in names if PROTOCOLS[name].needs_run]


def _named(where: Data) -> str:
    return str(where.folder) if where.folder != Path() else ""


def _show(name: str, done: list[tuple[Subject, Data, Result]]) -> None:
    """One table per protocol: a row per model, the metrics of each data set in percent, and what they rest on."""
    sets = list(dict.fromkeys(_named(where) for _, where, _ in done))
    metrics = {
        where: list(dict.fromkeys(m for _, w, r in done if _named(w) == where for m in r.metrics)) for where in sets
    }
    short = {where: f"{Path(where).resolve().name} " if len(sets) > 1 else "" for where in sets}
    columns = ["model", "backbone", *(short[where] + metric for where in sets for metric in metrics[where])]
    rows = []
    for subject in dict.fromkeys(id(s) for s, _, _ in done):
        own: dict[str, Any] = {_named(w): r for s, w, r in done if id(s) == subject}
        first = next(s for s, _, _ in done if id(s) == subject)
        cells = [_percent(own[where].metrics.get(metric)) for where in sets for metric in metrics[where]]
        rows.append([first.path, first.backbone, *cells])
    show_table(columns, rows, title=f"{name}, percent")
    for where in sets:
        counts = next(r.counts for _, w, r in done if _named(w) == where)
        print(f"{short[where]}{', '.join(f'{value:,} {what}' for what, value in counts.items())}")
    for text in dict.fromkeys(short[_named(w)] + text for _, w, r in done for text in r.notes):
        print(text)


def _percent(value: float | None) -> str:
    if value is None:
        return "-"
    return "nan" if math.isnan(value) else f"{100 * value:.2f}"
