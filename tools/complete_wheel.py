"""Puts the licences of what is compiled in into a wheel, and takes the paths of the machine that
built it out of its SBOM, which it also leaves beside it.

    python tools/complete_wheel.py WHEEL LICENCES SBOM FOLDER

The wheel that is written to FOLDER has the name that it had.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def without_paths(sbom: Any, built_in: str) -> Any:
    """Folders of the workspace are named from its root on."""
    return json.loads(json.dumps(sbom).replace(f"file://{built_in}/", "file:///").replace(f"file://{built_in}", "file:///"))


def complete(wheel: Path, licences: Path, sbom: Path, folder: Path) -> None:
    tool = [sys.executable, "-m", "wheel"]
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run([*tool, "unpack", "--dest", scratch, wheel], check=True)
        (unpacked,) = Path(scratch).iterdir()
        (about,) = unpacked.glob("*.dist-info")
        (parts,) = (about / "sboms").glob("*.json")
        text = json.dumps(without_paths(json.loads(parts.read_text()), str(ROOT)), indent=1)
        parts.write_text(text)
        sbom.write_text(text)
        (about / "licenses" / licences.name).write_bytes(licences.read_bytes())
        metadata = about / "METADATA"
        first = "License-File: LICENSE\n"
        old = metadata.read_text()
        assert first in old, f"{metadata.name} does not name the licence"
        metadata.write_text(old.replace(first, f"{first}License-File: {licences.name}\n", 1))
        subprocess.run([*tool, "pack", "--dest-dir", folder, unpacked], check=True)


if __name__ == "__main__":
    complete(*map(Path, sys.argv[1:]))
