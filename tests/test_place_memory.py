"""How much memory a role is said to take, against what its process grows by."""

from __future__ import annotations

import json
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest
from test_place import fleet_of

from alphac import pipeline
from alphac.generic import dense, write_system
from alphac.ir.passes.plan import Pricer
from alphac.ir.passes.survey import survey
from alphac.ir.text_parse import parse_module
from alphac.runtime.bundle import read_bundle

# What a role does, and how many bytes of its own its process has before and after; code is not counted.
ROLE = """
import json, sys
from pathlib import Path
from alphac.bench.ours import Contender, open_endless

def own():
    with open("/proc/self/status") as lines:
        return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("RssAnon:", "RssShmem:")))

open_endless(Path(sys.argv[1]))
before = own()
trainer = Contender(Path(sys.argv[1]), 1)
trainer.first(3)
print(json.dumps(own() - before))
trainer.close()
"""
SIZES = {
    "states": dense(1536, 3072, 256, 32, 4, "relu"),
    "activations": dense(128, 1024, 64, 4096, 8, "tanh"),
}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
@pytest.mark.parametrize("name", SIZES)
def test_a_roles_memory_is_known_to_a_tenth(tmp_path: Path, name: str) -> None:
    source = write_system(SIZES[name], tmp_path / name)
    plan = pipeline.Plan.of(shares=[Fraction(1)])
    bundle = read_bundle(pipeline.compile_file(source, out=tmp_path / "one.bundle", plan=plan).path)
    done = subprocess.run([sys.executable, "-c", ROLE, str(bundle.path)], capture_output=True, text=True, check=True)
    grown = json.loads(done.stdout)
    module = parse_module(bundle.read("ir/compiled.ir").decode())
    system = survey(module, pipeline.schedules(module), (source.parent / "points.npz").stat().st_size)
    fleet = fleet_of([100])
    said = Pricer(system, fleet).role_memory([(fleet.endpoints[0], system.shards)], 0, [1])
    assert said == pytest.approx(grown, rel=0.1)
