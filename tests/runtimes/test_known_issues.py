"""What the table of known issues says of nodes that the suite has not; tests/conformance has the rest."""

from __future__ import annotations

from onegru.runtimes.known_issues import MEASURED, NodeFacts, verdicts


def test_nothing_is_said_of_a_plain_node() -> None:
    present = frozenset({"X", "W", "R", "B", "initial_h", "Y", "Y_h"})
    assert (
        verdicts(NodeFacts("GRU", 14, {"hidden_size": 8, "linear_before_reset": 1}, "float32", present)) == []
    )
    assert verdicts(NodeFacts("GRUCell", 3, {"hidden_size": "8", "clip": "0"}, None, present)) == []


def test_a_refusal_hides_what_would_be_miscomputed() -> None:
    facts = NodeFacts("GRU", 3, {"activations": ["Sigmoid", "Affine"]}, None, frozenset())
    found = [verdict for verdict in verdicts(facts) if verdict.runtime == "onnxruntime"]
    assert [verdict.effect for verdict in found] == ["refuses", "refuses"]
    assert all(verdict.version == MEASURED["onnxruntime"] for verdict in found)


def test_lengths_that_the_file_shows_to_be_full_are_no_issue() -> None:
    present = frozenset({"X", "W", "R", "B", "sequence_lens", "Y"})
    said = [
        {
            item.runtime
            for item in verdicts(
                NodeFacts("GRU", 14, {"hidden_size": 8}, "float32", present, False, True, full)
            )
        }
        for full in (False, True)
    ]
    assert said == [{"openvino", "onnx"}, set()]
