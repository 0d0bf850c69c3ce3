"""`make docs-reference`: writes the pages of docs/reference that are made from the code; `--check` only compares.

Exits 1 if a page differs in a check.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from hami.core.reason_texts import NODE_TEXTS, REASON_TEXTS
from hami.core.reasons import Reason

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "reference"
MADE_BY = "<!-- Made by `make docs-reference` from the code. Do not edit. -->"


def reason_codes() -> str:
    """Every reason code with its meaning and what to do."""
    lines = [
        "# Reason codes",
        "",
        MADE_BY,
        "",
        "Why a pod does not fit. kube-scheduler shows `<cards>/<all cards of the node> <code>` for each code of a",
        "node, the event `FilteringFailed` says `<nodes> nodes <code>(<names>)`. `hami explain NAMESPACE/POD` shows",
        "every card with what is required and what there is. Codes are HAMi's; none is ever renamed.",
        "",
        "## Codes",
        "",
    ]
    for reason in sorted(Reason):
        text = REASON_TEXTS[reason]
        lines += [f"### {reason}", "", text.meaning, ""]
        lines += [f"Compared: {text.check}.", ""] if text.check else ["The evaluator does not give this code.", ""]
        lines += [f"What to do: {text.what_to_do}", ""]
    lines += ["## Texts that are no codes", ""]
    for words, meaning, what_to_do in NODE_TEXTS:
        lines += [f"### {words}", "", meaning, "", f"What to do: {what_to_do}", ""]
    return "\n".join(lines).rstrip() + "\n"


PAGES: dict[str, Callable[[], str]] = {"reason-codes.md": reason_codes}


def main(argv: list[str]) -> int:
    """Writes or compares every page."""
    different = []
    for name, page in PAGES.items():
        path, text = FOLDER / name, page()
        if path.exists() and path.read_text() == text:
            continue
        different.append(name)
        if "--check" not in argv:
            path.write_text(text)
    for name in different:
        print(f"docs/reference/{name}: {'differs, run make docs-reference' if '--check' in argv else 'written'}")
    return 1 if different and "--check" in argv else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
