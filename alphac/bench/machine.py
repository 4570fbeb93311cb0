"""Which machine this is, for records."""

from __future__ import annotations

import os
import platform
from typing import Any

from alphac import processor


def describe() -> dict[str, Any]:
    """This machine: processor, cores that may be used, and how many were busy just before."""
    return {
        "processor": processor.name([]),
        "architecture": platform.machine(),
        "cores": processor.cores(),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "load": round(os.getloadavg()[0], 2),
    }
