"""Texts of events, word for word (spec/scheduler 4.8, 12)."""

from hami.core import narrative
from hami.core.reasons import NODE_UNREGISTERED, Reason, Rejection, rejection

TWO_FAILURES = rejection(
    {Reason.CARD_INSUFFICIENT_MEMORY: 1, Reason.ALLOCATED_CARDS_INSUFFICIENT_REQUEST: 1, Reason.NUMA_NOT_FIT: 0}, 2
)
NO_CARDS = Rejection(Reason.NODE_INSUFFICIENT_DEVICE, ((Reason.NODE_INSUFFICIENT_DEVICE, 0),), 2)


def test_reasons_are_sorted_texts_with_counts() -> None:
    assert TWO_FAILURES.text == "1/2 AllocatedCardsInsufficientRequest, 1/2 CardInsufficientMemory"
    counts = {Reason.CARD_NOT_HEALTH: 1, Reason.CARD_INSUFFICIENT_MEMORY: 7, Reason.CARD_CORDONED: 10}
    assert rejection(counts, 18).text == "1/18 CardNotHealth, 10/18 CardCordoned, 7/18 CardInsufficientMemory"


def test_section_12_failure_events() -> None:
    assert narrative.filtering_failed({"n2": TWO_FAILURES, "n1": TWO_FAILURES}, 2) == [
        "2 nodes AllocatedCardsInsufficientRequest(n1,n2)",
        "2 nodes CardInsufficientMemory(n1,n2)",
        "no available node, 2 nodes do not meet",
    ]


def test_nodes_without_card_reasons_are_in_the_summary_only() -> None:
    assert narrative.filtering_failed({"n1": NO_CARDS, "n2": NODE_UNREGISTERED}, 3) == [
        "no available node, 3 nodes do not meet"
    ]


def test_long_lists_are_cut_and_counted() -> None:
    names = [f"node-{number:04}" for number in range(5000)]
    message = narrative.filtering_failed(dict.fromkeys(names, TWO_FAILURES), 5000)[0]
    assert message.startswith("5000 nodes AllocatedCardsInsufficientRequest(node-0000,node-0001,")
    assert message.endswith(",... 4920 more)")
    assert len(message) < 1024


def test_success_lists_scores_with_two_decimals() -> None:
    assert narrative.filtering_succeed("n1", [("n1", 3.25), ("n2", 0.0)], 5) == (
        "find fit node(n1), 3 nodes not fit, 2 nodes fit(n1:3.25,n2:0.00)"
    )


def test_other_texts() -> None:
    assert narrative.binding_succeed("n1", "default", "p") == "Successfully binding node [n1] to default/p"
    assert narrative.binding_failed_node("n1") == "failed to get node n1"
