"""A run as data: the tables of a recipe, frozen and validated.

`[method]`, `[weighting]` and `[regulariser]` are checked later, by what they name, since this package knows nothing of
the methods.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator
from pydantic.fields import FieldInfo

Share = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]


class Section(BaseModel):
    """A table of a recipe: frozen, and nothing unknown in it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _truth_is_no_number(cls, table: Any) -> Any:
        for name, value in table.items() if isinstance(table, dict) else ():
            if isinstance(value, bool) and name in cls.model_fields and not _may_be_true(cls.model_fields[name]):
                raise ValueError(f"{name} = {str(value).lower()} is not possible: it is neither on nor off")
        return table


def _may_be_true(field: FieldInfo) -> bool:
    return field.annotation is bool or bool in get_args(field.annotation)


class Faces(Section):
    """Where the images come from: the built-in generator, or folders written by `fedvisage data`."""

    source: str | Annotated[tuple[str, ...], Field(min_length=1)] = "synthetic"
    """Several folders are joined, each a domain under its folder's name, its people called `domain/name`."""
    size: Annotated[int, Field(ge=16, le=1024)] = 48
    resize: bool = False
    """Whether folders of another size are scaled when read; if not, they are refused."""
    identities: Count = 300
    images_per_identity: Annotated[int, Field(ge=2)] = 20
    domain: str | Annotated[tuple[str, ...], Field(min_length=1)] = "daylight"
    """Of synthetic faces; over several domains the identities are shared out evenly."""
    seed: int = 0


Names = str | tuple[str, ...]
"""The names of people, or a file with a name per line."""


class People(Section):
    """Some people: by name, of a domain, of folds of the set's pairs; all of those, or a number of them drawn."""

    count: Count | None = None
    domain: str | None = None
    folds: tuple[Count, ...] = ()
    """Those in these folds of the folder's list `pairs`."""
    names: Names = ()
    min_images: Count | None = None
    """By default `partition.min_images`."""
    most_images: Count | None = None
    """People with more images are not among them; by default there is no such limit."""


class Group(People):
    """Parties that have something in common, such as their role or the domain of their people."""

    role: Literal["trainer", "source", "target", "validator"] = "trainer"
    parties: Count = 1
    sizes: Literal["equal", "log-normal"] = "equal"
    identities_per_party: Count | None = None
    shared: Annotated[float, Field(ge=0, le=1)] = 0.0
    holders: Annotated[int, Field(ge=2)] = 2
    held_out: Annotated[float, Field(ge=0, lt=1)] | None = None
    """By default `partition.held_out`, and nothing where the party has no labels or does not train."""


def _how(part: Any) -> str:
    return "several" if isinstance(part, list | tuple) else "people" if isinstance(part, dict | People) else "number"


Several = tuple[People, ...]
Part = Annotated[
    Annotated[int, Field(ge=0), Tag("number")] | Annotated[People, Tag("people")] | Annotated[Several, Tag("several")],
    Discriminator(_how),
]
"""A number of people drawn from all that are left, or a table that says who, or several such tables."""


class Partition(Section):
    """Which people are public, which belong to which party, and which nobody trains on."""

    public: Part = 0
    test: Part = 0
    validation: Part = 0
    """Like the test, for choosing hyper-parameters and rounds; without any, the validators' people are asked."""
    probes: Annotated[int, Field(ge=0)] = 0
    """Images of each test person that are looked for among the others, the gallery."""
    validators: Annotated[int, Field(ge=0)] = 0
    identities_per_validator: Count = 20
    swapped: bool = False
    """Whether the validators' people are tested on and the test people validate, domain by domain."""
    parties: Count = 8
    by: Literal["identity", "domain"] = "identity"
    """Whether the parties mix people of all domains, or each has people of one."""
    sizes: Literal["equal", "log-normal"] = "equal"
    identities_per_party: Count | None = None
    """With equal sizes; by default the remaining identities are shared out evenly."""
    shared: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the parties' people that several of them hold, each with images of its own."""
    holders: Annotated[int, Field(ge=2)] = 2
    """Parties that hold a shared person."""
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """Share of each person's images that the party keeps for its own evaluation."""
    held_out_first: Count | None = None
    """Images of each person, the first ones of the set, that the party keeps instead of that share."""
    min_images: Count = 1
    """People with fewer are left out."""
    max_images: Count | None = None
    """Of each public person and each person of a party; the others are left out."""
    exclude: Names = ()
    groups: dict[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")], Group] = {}
    """Parties named group by group, in place of `parties`."""
    file: str | None = None
    """A saved partition to take as it is, or the folder of faces whose lists say it."""

    @model_validator(mode="before")
    @classmethod
    def _count_the_groups(cls, table: Any) -> Any:
        """`parties` is how many there are besides validators, however they are named."""
        if isinstance(table, dict) and isinstance(table.get("groups"), dict) and table["groups"]:
            groups = [dict(group) for group in table["groups"].values() if isinstance(group, dict | Group)]
            counts = [group.get("parties", 1) for group in groups if group.get("role") != "validator"]
            if all(isinstance(count, int) for count in counts):
                return table | {"parties": sum(counts)}
        return table


class Backbone(Section):
    """The network."""

    name: str = "ir-tiny"
    embedding_size: Count | None = None
    start: str | None = None
    """A trained model to start from: `dlib`, a model file or a run's folder."""
    train_from: str | None = None
    """The first stage that is trained; those before it stay as they are, and only the rest travels."""
    cache: bool | str = True
    """Whether frozen stages run once per image and its mirror, or in every step; a folder keeps that for other runs."""


class Training(Section):
    """Local work: loss, optimiser, batches, augmentation."""

    loss: str = "cosface"
    scale: Positive | None = None
    margin: NotNegative | None = None
    loss_options: dict[str, Any] = {}
    """What else the loss takes: `form = "hinge"` of CosFace, `form = "raw"` of ArcFace, ..."""
    centre: Literal["none", "running"] = "none"
    """Compare vectors as they are, or about the running mean of the features that local work sees."""
    batch_size: Annotated[int, Field(ge=2)] = 32
    epochs: Count | None = None
    steps: Count | None = None
    learning_rate: Positive = 0.05
    heads_rate: Positive = 1.0
    """The rate of class embeddings and all else trained beside the backbone, as a multiple of the backbone's."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    weight_decay: NotNegative = 5e-4
    schedule: str = "constant"
    """How the rate changes from round to round (epoch in pre-training): `fedvisage.training.schedules`."""
    milestones: tuple[Count, ...] = ()
    """Rounds after which `steps` multiplies the rate by `decay`."""
    decay: Positive = 0.1
    schedule_options: dict[str, Any] = {}
    """What else the schedule takes."""
    optimiser: str = "sgd"
    """What takes the steps: `fedvisage.training.optimisers`."""
    optimiser_options: dict[str, Any] = {}
    """What it takes besides `momentum` and `weight_decay`."""
    optimiser_state: Literal["reset", "keep"] = "reset"
    flip: bool = True
    crop: Annotated[int, Field(ge=0)] = 0
    """Largest shift in pixels of the random crop."""
    precision: Literal["fp32", "bf16"] = "fp32"
    prefetch: Annotated[int, Field(ge=0)] = 0
    """Batches prepared ahead in a thread."""
    batchnorm: Literal["batch", "fixed"] = "batch"
    """Normalise by each batch's statistics, or by those the model came with: a batch of one person has only its own."""

    @model_validator(mode="after")
    def _one_amount(self) -> Training:
        if self.epochs is not None and self.steps is not None:
            raise ValueError("give epochs or steps, not both")
        return self

    @property
    def local_epochs(self) -> int | None:
        """Epochs of local work; one where nothing is said, None where it is counted in steps."""
        return None if self.steps is not None else self.epochs or 1


class Pretrain(Training):
    """Training of the start model on public identities before the federation; 0 epochs for none."""

    epochs: Annotated[int, Field(ge=0)] = 0


class Guard(Section):
    """What an answer must satisfy to be counted, besides its shapes and finite values."""

    norm_bound: Positive | None = None
    """Largest accepted norm of a backbone update; it replaces the three comparisons below."""
    norm_multiple: Positive | None = 20.0
    """Largest update as a multiple of what is usual in the role per local step; of one's own, two fifths of it."""
    model_multiple: Positive | None = 10.0
    """Largest update as a multiple of the norm of the model that went down; in the first round the only bound."""
    norm_floor: Annotated[float, Field(ge=0)] = 0.01
    """Updates up to this share of the norm of the model that went down are always accepted."""
    max_samples: Count = 100_000_000
    """Most images of a party."""
    max_classes: Count = 1_000_000
    """Most people of a party: the server may have to hold a class embedding for each."""


_OF_RULES = {"trimmed-mean": ("trim",), "norm-clipping": ("clip",)}


class Federation(Section):
    """Rounds, participation, aggregation and how the in-process transport uses this machine."""

    rounds: Count = 10
    participation: Share = 1.0
    quorum: Share = 0.5
    batchnorm: Literal["average", "local", "recalibrate"] = "average"
    keep_local: bool = False
    evaluate_every: Annotated[int, Field(ge=0)] = 0
    """Rounds between evaluations at the parties; 0 for none."""
    workers: Annotated[int, Field(ge=0)] = 0
    """Worker processes; 0 for one per core (or GPU), 1 for none besides the main one."""
    together: Count = 1
    """Parties whose single local step is computed at once, where that is equivalent (docs/papers/fedface.md)."""
    threads_per_party: Count = 1
    threads: Count = 1
    """Threads for work that is not split over parties: pre-training, pooled training, scoring."""
    timeout: Positive | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"
    guard: Guard = Guard()

    @model_validator(mode="before")
    @classmethod
    def _rule_has_a_table(cls, table: Any) -> Any:
        """Recipes of earlier versions that say what is now the default are read; others are told what to write."""
        if not isinstance(table, dict):
            return table
        rule = table.get("aggregation", "mean")
        options = {name: table[name] for name in _OF_RULES.get(str(rule), ()) if table.get(name) is not None}
        if rule != "mean":
            said = " and ".join([f'name = "{rule}"', *(f"{name} = {value}" for name, value in options.items())])
            raise ValueError(f"aggregation is a table of its own: write [aggregation] with {said} instead")
        return {name: value for name, value in table.items() if name not in ("aggregation", "trim", "clip")}


class Evaluation(Section):
    """Scores on identities nobody trained on."""

    pairs: Annotated[int, Field(ge=0)] = 3000
    fars: tuple[Share, ...] = (1e-1, 1e-2, 1e-3)
    flip: bool = True
    rule: Literal["exact", "insightface", "cosine"] = "exact"
    """How `accuracy` chooses its threshold: among all of them, or on the grid that a published code uses."""
    every: Annotated[int, Field(ge=0)] = 0
    """Rounds between scores of the global model while training; 0 for the end only."""
    choose: str = ""
    """A score on validation people, such as `tar@0.01`: models of the round with the best are kept in `chosen/`."""

    @model_validator(mode="after")
    def _choice_needs_rounds(self) -> Evaluation:
        if self.choose and not self.every:
            raise ValueError("choose needs 'every', the rounds between scores that it chooses from")
        return self


class Centre(Section):
    """Centres that the trained model carries."""

    groups: tuple[str, ...] = ()
    """Whose people each is the mean of: `all`, a group of parties or a party, by name."""


class Recipe(Section):
    """Everything a run needs; running the same recipe again gives the same bits."""

    name: str = "run"
    seed: int = 1
    description: str = ""
    plugins: tuple[str, ...] = ()
    """Modules outside the package (or names that installed packages give them) whose parts the recipe uses."""
    faces: Faces = Faces()
    partition: Partition = Partition()
    backbone: Backbone = Backbone()
    pretrain: Pretrain = Pretrain()
    training: Training = Training()
    method: dict[str, Any] = {"name": "fedavg"}
    weighting: dict[str, Any] = {}
    """How much each party counts: a name (`samples`, `equal`, ...) and its options; by default the method's choice."""
    regulariser: dict[str, Any] = {}
    """What the server does to class embeddings: a name and its options, or `none`; by default the method's choice."""
    aggregation: dict[str, Any] = {"name": "mean"}
    """What the server makes of the answers: a rule's name (`mean`, `median`, ...) and its options."""
    federation: Federation = Federation()
    centre: Centre = Centre()
    evaluation: Evaluation = Evaluation()
    compare: tuple[str, ...] = ()
    """Methods run on the same start and budget for comparison, such as `alone` and `central`."""
    track: tuple[Literal["tensorboard", "mlflow"], ...] = ()

    @model_validator(mode="after")
    def _parts_have_names(self) -> Recipe:
        parts = {"method": "fedavg", "weighting": "equal", "regulariser": "spreadout", "aggregation": "median"}
        for part, example in parts.items():
            table = getattr(self, part)
            if (table or part in ("method", "aggregation")) and not isinstance(table.get("name"), str):
                raise ValueError(f'[{part}] needs a name, such as name = "{example}"')
        return self
