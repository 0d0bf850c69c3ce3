"""`make check`: format, lint, types, import contracts, C format. Prints each step's time; exits 1 if any fails."""

from __future__ import annotations

import subprocess
import sys
import time

LISTED = subprocess.run(["git", "ls-files", "*.c", "*.h"], capture_output=True, text=True, check=True)
C_FILES = LISTED.stdout.split()

STEPS: dict[str, list[str]] = {
    "format": ["ruff", "format", "--check", "-q", "."],
    "lint": ["ruff", "check", "-q", "."],
    "types": ["mypy"],
    "contracts": ["lint-imports", "--no-logo"],
    **({"c-format": ["clang-format", "--dry-run", "-Werror", *C_FILES]} if C_FILES else {}),
}


def main() -> int:
    failed = []
    for name, command in STEPS.items():
        started = time.monotonic()
        result = subprocess.run(command, check=False, capture_output=True, text=True)
        print(f"check {name:<10} {'ok' if result.returncode == 0 else 'FAILED':<7} {time.monotonic() - started:6.1f} s")
        if result.returncode != 0:
            failed.append(name)
            print(result.stdout + result.stderr)
    if failed:
        print(f"check: {', '.join(failed)} failed; `make fmt` mends formatting")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
