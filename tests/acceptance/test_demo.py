"""`spectral demo`, as `make demo` runs it: a process of its own that needs nothing and leaves nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_the_demo_comes_out_even(tmp_path: Path) -> None:
    command = Path(sys.executable).parent / "spectral"
    done = subprocess.run(
        [command, "demo", "--json"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert (counts["published"], counts["rolled_back"]) == (5_900, 100)
    assert counts["published"] == counts["notified"] == counts["delivered"] == counts["handled"]
    assert (counts["taken_over"], counts["dead_lettered"], counts["replayed"]) == (50, 10, 10)
    assert {counts[name] for name in ("lost", "ghosts", "duplicated", "stuck")} == {0}
    assert "clean:" in done.stderr
    assert list(tmp_path.iterdir()) == []
