"""Disruption budgets: which pods they protect, and whether a set of evictions stays within them.

Source: Kubernetes policy/v1 PodDisruptionBudget: a missing selector protects nothing, an empty one every pod of the
namespace; `status.disruptionsAllowed` is what may be evicted now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from hami.core.objects import ObjectMeta, Pod


class Requirement(msgspec.Struct, frozen=True, rename="camel"):
    """One expression of a label selector."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None

    def matches(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value in (self.values or ())
            case "NotIn":
                return value not in (self.values or ())
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
        return False


class LabelSelector(msgspec.Struct, frozen=True, rename="camel"):
    match_labels: dict[str, str] | None = None
    match_expressions: tuple[Requirement, ...] | None = None

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether every label and expression holds."""
        same = all(labels.get(key) == value for key, value in (self.match_labels or {}).items())
        return same and all(each.matches(labels) for each in self.match_expressions or ())


class BudgetSpec(msgspec.Struct, frozen=True, rename="camel"):
    selector: LabelSelector | None = None


class BudgetStatus(msgspec.Struct, frozen=True, rename="camel"):
    disruptions_allowed: int = 0


class DisruptionBudget(msgspec.Struct, frozen=True, rename="camel"):
    """A PodDisruptionBudget, as far as hami reads it."""

    metadata: ObjectMeta = ObjectMeta()
    spec: BudgetSpec = BudgetSpec()
    status: BudgetStatus = BudgetStatus()

    def protects(self, pod: Pod) -> bool:
        selector = self.spec.selector
        same = self.metadata.namespace == pod.metadata.namespace
        return same and selector is not None and selector.matches(pod.labels)


def within_budgets(evicted: Iterable[Pod], budgets: Sequence[DisruptionBudget]) -> bool:
    """Whether all of these pods may be evicted together."""
    asked = Counter(number for pod in evicted for number, budget in enumerate(budgets) if budget.protects(pod))
    return all(count <= budgets[number].status.disruptions_allowed for number, count in asked.items())


budget_decoder = msgspec.json.Decoder(DisruptionBudget)
