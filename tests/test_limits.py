"""Whatever is to be set is either a change within its bounds or refused with a sentence for each field."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobq import limits
from jobq.errors import InvalidLimit

NAMES = st.sampled_from(
    ["weight", "queue", "queueWeights", "queue_weights", "maxRunning", "max_running", "maxPerKey", "rate", "paused", "x"]
)  # fmt: skip
PARTS = st.sampled_from(["limit", "periodSeconds", "period_seconds", "burst", "x"])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
NEAR = st.sampled_from(
    [0, 1, -1, 10_000, 10_001, 0.5, 1e6, 1e9, 10**400, math.inf, math.nan, "mail"]
)
VALUES = SCALARS | NEAR
SHAPES = (
    VALUES
    | st.lists(VALUES, max_size=2)
    | st.dictionaries(PARTS, VALUES, max_size=4)
    | st.dictionaries(st.text(max_size=3) | st.just("mail"), VALUES, max_size=3)
)
BOUNDS: dict[str, tuple[float, float]] = {
    "weight": (0.0001, 1e6), "max_running": (1, 10_000), "max_per_key": (1, 10_000), "rate_limit": (1, 1e9),
    "rate_period": (0.001, 3650 * 86400), "rate_burst": (1, 1e9),
}  # fmt: skip


def outcome(scope: str, body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The change, or what is wrong with it."""
    try:
        return limits.check(scope, body, naming=limits.CAMEL), {}
    except InvalidLimit as error:
        return {}, error.fields or {"": ""}


@given(
    scope=st.sampled_from(sorted(limits.FIELDS)), body=st.dictionaries(NAMES, SHAPES, max_size=5)
)
def test_anything_is_a_change_within_bounds_or_refused(scope: str, body: dict[str, Any]) -> None:
    change, problems = outcome(scope, body)
    assert all(problems.values())
    for column, value in change.items():
        if column == "queue_weights":
            weights = (value or {}).values()
            assert all(weight is None or 0.0001 <= weight <= 1e6 for weight in weights)
        elif column == "paused":
            assert value in (True, False)
        else:
            low, high = BOUNDS[column]
            assert value is None or low <= value <= high
    rate = {"rate_limit", "rate_period", "rate_burst"}
    assert not change.keys() & rate or change.keys() >= rate
    assert change.get("rate_limit") is None or change["rate_period"] is not None


@pytest.mark.parametrize("scope", limits.FIELDS)
def test_a_field_of_another_scope_names_those_that_there_are(scope: str) -> None:
    with pytest.raises(InvalidLimit) as caught:
        limits.check(scope, {"sunday": True}, naming=limits.CAMEL)
    named = caught.value.fields["sunday"].partition("those are ")[2].split(", ")
    assert named == [limits.CAMEL.get(name, name) for name in limits.FIELDS[scope]]
