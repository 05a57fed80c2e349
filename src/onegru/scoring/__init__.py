"""Run models over sequences in Arrow tables and in Parquet data sets.

from onegru.scoring import Scorer

scorer = Scorer("model.pt", inputs={"X": "events"}, keep=["id"])
scored = scorer(table)                                # a pyarrow.Table
dataset.map_batches(scorer, batch_format="pyarrow")   # Ray Data
frame.mapInArrow(scorer.batches, schema)              # Spark
"""

from __future__ import annotations

from onegru.core.errors import needs_extra

with needs_extra("pyarrow", "scoring", "onegru.scoring"):
    import pyarrow as _  # noqa: F401

from onegru.scoring.ray import on_ray
from onegru.scoring.samples import read_samples
from onegru.scoring.score import Scoring, score
from onegru.scoring.scorer import Scored, Scorer, SkippedRow

__all__ = ["Scored", "Scorer", "Scoring", "SkippedRow", "on_ray", "read_samples", "score"]
