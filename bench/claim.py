"""A claim: cases that do the same work, the metrics that are measured of each, and the goals for the figures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

# The figures of one run of a case, by name. Rates and costs are per record, so that a slow peer may get fewer records.
Measurement = dict[str, float]
ROUNDS = 5
# The measurements of each case, in the order of the rounds.
Results = Mapping[str, Sequence[Measurement]]


@dataclass(frozen=True)
class Job:
    """The task of one run of a case. `bootstrap` and `topic` are empty if the claim needs no broker."""

    amount: int
    """Records, seconds or operations, in the claim's unit; the case's share is applied already."""
    bootstrap: str = ""
    topic: str = ""
    brief: float = 1.0
    """The claim's `brief` in a run of all claims: a case that repeats its work may take so much fewer repetitions."""


@dataclass(frozen=True)
class Case:
    """A case of a claim. `run` is called in a process of its own, once a round, or in the process of its group."""

    name: str
    run: Callable[[Job], Measurement]
    share: float = 1.0
    """The part of the claim's amount that this case gets: less than 1 for a slow peer, which saves time."""
    baseline: str = ""
    """The case that it is compared with, or "" for the claim's baseline."""
    check: Callable[[], object] = lambda: None
    """Called before any case runs. It prepares the case, or raises an error that says what to do."""
    group: str = ""
    """Cases of the same group run in one process, one after the other: their start takes longer than they do."""
    apart: bool = False
    """A run of all claims leaves it out: it takes long, and no goal needs it."""


@dataclass(frozen=True)
class Metric:
    """A figure that every case reports. It has a column in the table."""

    name: str
    heading: str
    format: str = ".2f"
    more_is_better: bool = True
    ratio: bool = True
    """Whether table and plot show its ratio to the baseline's figure."""

    @property
    def direction(self) -> str:
        return "more is better" if self.more_is_better else "less is better"


@dataclass(frozen=True)
class Goal:
    """A bound for the median figure of a case, or for the median of its ratios to the case `other`."""

    text: str
    case: str
    metric: str
    bound: float
    other: str | None = None
    at_most: bool = False
    above: str | None = None
    """A case whose figure is subtracted from both figures first: the work that both cases share."""

    def judge(self, results: Results) -> Verdict | None:
        """The verdict, or None if one of the goal's cases has not run."""
        if any(name not in results for name in (self.case, self.other, self.above) if name):
            return None
        if self.other is None:
            figure = median(results, self.case, self.metric)
        else:
            figure = ratio(results, self.case, self.other, self.metric, self.above)
        return Verdict(self, figure, figure <= self.bound if self.at_most else figure >= self.bound)


@dataclass(frozen=True)
class Verdict:
    goal: Goal
    figure: float
    met: bool

    @property
    def line(self) -> str:
        sense = "<=" if self.goal.at_most else ">="
        against = f" x {self.goal.other}" if self.goal.other else ""
        against += f", both above {self.goal.above}" if self.goal.above else ""
        return (
            f"{'met   ' if self.met else 'missed'} {self.goal.text}: {self.figure:.3g}{against}"
            f" (goal {sense} {self.goal.bound:.3g})"
        )


@dataclass(frozen=True)
class Claim:
    """One command of the bench: `python -m bench NAME`."""

    name: str
    title: str
    """The claim in a sentence; the heading of the table and the plot."""
    cases: Sequence[Case]
    metrics: Sequence[Metric]
    baseline: str
    """The baseline of all cases that name none of their own."""
    amount: int
    """The amount of one run, in `unit`, which is also the name of the option."""
    unit: str = "records"
    goals: Sequence[Goal] = ()
    rounds: int = ROUNDS
    """Runs of each case by default: one if noise cannot change the figure."""
    seconds: float = 30.0
    """The time that a run of all claims should give it: two or three rounds, or one if a round takes a minute."""
    brief: float = 1.0
    """The part of the amount, and of the repetitions in a case, that is enough in a run of all claims: less than 1 for
    a claim that takes minutes."""
    needs_kafka: bool = True
    embedded: bool = False
    """Whether it may run on the embedded cluster where there is no Apache Kafka."""
    cluster: Callable[[], AbstractContextManager[str]] | None = None
    """Starts a cluster for this claim alone, and yields its address. None: the claim uses the Kafka of all claims."""
    notes: Sequence[str] = ()
    """Facts that a reader needs to understand the figures; printed and stored with them."""

    def __post_init__(self) -> None:
        cases, metrics = {case.name for case in self.cases}, {metric.name for metric in self.metrics}
        if len(cases) != len(self.cases):
            raise ValueError(f"{self.name}: two cases have the same name")
        of_goals = {name for goal in self.goals for name in (goal.case, goal.other, goal.above) if name}
        if unknown := {*map(self.baseline_of, cases), *of_goals} - cases:
            raise ValueError(f"{self.name}: no case is called {', '.join(sorted(unknown))}")
        briefly = {case.name for case in self.briefly()}
        if missing := {*map(self.baseline_of, briefly), *of_goals} - briefly:
            raise ValueError(f"{self.name}: a run of all claims needs the case {', '.join(sorted(missing))}")
        if unknown := {goal.metric for goal in self.goals} - metrics:
            raise ValueError(f"{self.name}: no metric is called {', '.join(sorted(unknown))}")

    def case(self, name: str) -> Case:
        return next(case for case in self.cases if case.name == name)

    def baseline_of(self, name: str) -> str:
        """The case that `name` is compared with."""
        return self.case(name).baseline or self.baseline

    def verdicts(self, results: Results) -> list[Verdict]:
        """The verdicts on the goals whose cases have run."""
        return [verdict for goal in self.goals if (verdict := goal.judge(results)) is not None]

    def chosen(self, names: Collection[str]) -> list[Case]:
        """The cases of these names and their baselines; every case if there are no names."""
        wanted = {*names, *map(self.baseline_of, names)}
        return [case for case in self.cases if not names or case.name in wanted]

    def briefly(self) -> list[Case]:
        """The cases of a run of all claims."""
        return [case for case in self.cases if not case.apart]

    def decisive(self, cases: Sequence[Case]) -> list[Case]:
        """Those of the cases by whose figures a goal is judged. In a run of all claims the others run once."""
        judged = {name for goal in self.goals for name in (goal.case, goal.other, goal.above)}
        return [case for case in cases if case.name in judged]


def ratios(results: Results, case: str, other: str, metric: str, above: str | None = None) -> list[float]:
    """`case` / `other` of each round that both ran in, after the figure of `above` is subtracted from both.

    A disturbance of the machine that lasts longer than a round disturbs both.
    """
    dividends, divisors = ([figures[metric] for figures in results[name]] for name in (case, other))
    shared = [figures[metric] for figures in results[above]] if above else [0.0] * len(dividends)
    return [
        _divide(dividend - common, divisor - common)
        for dividend, divisor, common in zip(dividends, divisors, shared, strict=False)
    ]


def ratio(results: Results, case: str, other: str, metric: str, above: str | None = None) -> float:
    """The median of the rounds' ratios."""
    return statistics.median(ratios(results, case, other, metric, above))


def median(results: Results, case: str, metric: str) -> float:
    return statistics.median(figures[metric] for figures in results[case])


def _divide(dividend: float, divisor: float) -> float:
    if divisor:
        return dividend / divisor
    return math.inf if dividend else 1.0
