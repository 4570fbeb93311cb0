"""Dated records of benchmarks: what was measured, when, and on which machine."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RECORDS = Path(__file__).parent / "records"


def write_record(name: str, result: Mapping[str, Any]) -> Path:
    """Write records/NAME-DATE.json, over one of the same day."""
    now = datetime.now(UTC)
    record = {"benchmark": name, "date": now.isoformat(timespec="seconds"), "machine": machine(), **result}
    RECORDS.mkdir(exist_ok=True)
    path = RECORDS / f"{name}-{now:%Y-%m-%d}.json"
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return path


def machine() -> dict[str, Any]:
    """This machine: processor, cores that may be used, and how many were busy just before."""
    return {
        "processor": _processor(),
        "architecture": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "load": round(os.getloadavg()[0], 2),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
