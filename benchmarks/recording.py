"""Dated records of benchmarks: what was measured, when, and on which machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from alphac.bench.machine import describe

RECORDS = Path(__file__).parent / "records"


def write_record(name: str, result: Mapping[str, Any]) -> Path:
    """Write records/NAME-DATE.json, over one of the same day."""
    now = datetime.now(UTC)
    record = {"benchmark": name, "date": now.isoformat(timespec="seconds"), "machine": describe(), **result}
    RECORDS.mkdir(exist_ok=True)
    path = RECORDS / f"{name}-{now:%Y-%m-%d}.json"
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return path
