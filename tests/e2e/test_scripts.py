"""The README's lines work as a plain script, worker processes included."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SMALLER = {
    '"demo", {"federation.rounds": 5, "compare": ["central"]}': '"smoke", {"compare": [], "federation.workers": 2}',
    "size=48": "size=32",
}


def test_the_readme_script_runs_without_a_main_guard(tmp_path: Path) -> None:
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    assert found
    script = found[1]
    for words, fewer in SMALLER.items():
        assert words in script
        script = script.replace(words, fewer)
    (tmp_path / "script.py").write_text(script)
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["model", "start", "fedavg", "same"], (
        "printed once, not once a worker"
    )
    assert (tmp_path / "runs" / "short" / "report.html").exists()
