"""What a claim is: cases that do the same work, what is measured of each, and the goals for the figures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

# What one run of one case found: figures by name. Rates and costs are for one record, so that a slow peer may be given
# fewer of them.
Measurement = dict[str, float]
ROUNDS = 5
# By case, one measurement for each round, in the order of the rounds.
Results = Mapping[str, Sequence[Measurement]]


@dataclass(frozen=True)
class Job:
    """What a case is told. `bootstrap` and `topic` are empty where the claim needs no broker."""

    amount: int
    """Records, seconds or operations: the claim's unit, the case's share already applied."""
    bootstrap: str = ""
    topic: str = ""


@dataclass(frozen=True)
class Case:
    """One of those compared. `run` is called in a process of its own, once a round."""

    name: str
    run: Callable[[Job], Measurement]
    share: float = 1.0
    """The part of the claim's amount it is given: less for a peer so slow that the rest would only cost time."""
    baseline: str = ""
    """The case it is compared with, where that is not the claim's."""
    check: Callable[[], object] = lambda: None
    """Called before anything is run: prepares what the case needs, or raises and says what to do."""


@dataclass(frozen=True)
class Metric:
    """A figure every case reports: a column of the table, and one of its ratios to the baseline."""

    name: str
    heading: str
    format: str = ".2f"
    more_is_better: bool = True
    ratio: bool = True
    """Whether table and plot compare it with the baseline."""

    @property
    def direction(self) -> str:
        return "more is better" if self.more_is_better else "less is better"


@dataclass(frozen=True)
class Goal:
    """What must be reached: the median figure of a case, or of its ratio to `other`, against a bound."""

    text: str
    case: str
    metric: str
    bound: float
    other: str | None = None
    at_most: bool = False
    above: str | None = None
    """A case whose figure is taken off both first: what both must do, whoever does it."""

    def judge(self, results: Results) -> Verdict | None:
        """None where one of its cases has not been run."""
        if any(name not in results for name in (self.case, self.other, self.above) if name):
            return None
        if self.other is None:
            figure = statistics.median(found[self.metric] for found in results[self.case])
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
    """Says what is claimed; heads the table and the plot."""
    cases: Sequence[Case]
    metrics: Sequence[Metric]
    baseline: str
    """The case that all are compared with that name no other."""
    amount: int
    """Of one run, in `unit`, which is also the name of the option."""
    unit: str = "records"
    goals: Sequence[Goal] = ()
    rounds: int = ROUNDS
    """Runs of each case, unless more or fewer are asked for: one where noise cannot change the figure."""
    needs_kafka: bool = True
    cluster: Callable[[], AbstractContextManager[str]] | None = None
    """What it is measured with instead of the one Kafka of all claims: a cluster of its own, by its address."""
    notes: Sequence[str] = ()
    """What a reader must know to read the figures right; printed and kept with them."""

    def __post_init__(self) -> None:
        cases, metrics = {case.name for case in self.cases}, {metric.name for metric in self.metrics}
        if len(cases) != len(self.cases):
            raise ValueError(f"{self.name}: two cases have the same name")
        named = {
            *map(self.baseline_of, cases),
            *(name for goal in self.goals for name in (goal.case, goal.other, goal.above) if name),
        }
        if unknown := named - cases:
            raise ValueError(f"{self.name}: no case is called {', '.join(sorted(unknown))}")
        if unknown := {goal.metric for goal in self.goals} - metrics:
            raise ValueError(f"{self.name}: no metric is called {', '.join(sorted(unknown))}")

    def case(self, name: str) -> Case:
        return next(case for case in self.cases if case.name == name)

    def baseline_of(self, name: str) -> str:
        """The case that `name` is compared with."""
        return self.case(name).baseline or self.baseline

    def verdicts(self, results: Results) -> list[Verdict]:
        """Of the goals whose cases were run."""
        return [verdict for goal in self.goals if (verdict := goal.judge(results)) is not None]

    def chosen(self, names: Collection[str]) -> list[Case]:
        """The cases of these names with all they are compared with; every case where there are no names."""
        wanted = {*names, *map(self.baseline_of, names)}
        return [case for case in self.cases if not names or case.name in wanted]


def ratios(results: Results, case: str, other: str, metric: str, above: str | None = None) -> list[float]:
    """`case` / `other`, round by round: what disturbs the machine for longer than a round disturbs both. The figure of
    `above` is taken off both."""
    ours, theirs = ([found[metric] for found in results[name]] for name in (case, other))
    base = [found[metric] for found in results[above]] if above else [0.0] * len(ours)
    return [_divide(one - less, two - less) for one, two, less in zip(ours, theirs, base, strict=True)]


def ratio(results: Results, case: str, other: str, metric: str, above: str | None = None) -> float:
    """The median of the rounds' ratios."""
    return statistics.median(ratios(results, case, other, metric, above))


def median(results: Results, case: str, metric: str) -> float:
    return statistics.median(found[metric] for found in results[case])


def _divide(dividend: float, divisor: float) -> float:
    if divisor:
        return dividend / divisor
    return math.inf if dividend else 1.0
