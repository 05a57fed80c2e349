"""Which share of the property tests' examples is drawn: a quarter, or all of them with `--long`."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

runs_all = False  # set by conftest.py before tests are imported


def examples(count: int) -> settings:
    """Draw `count` examples in `make test-long`, and a quarter of them in `make test`."""
    drawn = count if runs_all else max(count // 4, 10)
    return settings(
        deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True, max_examples=drawn
    )
