"""Scrapes `/metrics` again and again as Prometheus does: `python -m tests.bench.scraper URL CORE`.

Prints what it got for each line in.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import threading
import time
from urllib.parse import urlsplit


class Scraper:
    """Scrapes back to back: worse than any Prometheus. `encoding`: what to accept; Prometheus takes gzip."""

    def __init__(self, url: str, encoding: str = "gzip") -> None:
        self._parts = urlsplit(url)
        self._encoding = encoding
        self.scrapes = 0
        self.mib = 0.0
        self.seconds = 0.0

    def scrape(self) -> None:
        """One whole answer. Raises ConnectionError on a status other than 200, or another encoding."""
        start = time.perf_counter()
        connection = http.client.HTTPConnection(self._parts.hostname or "", self._parts.port, timeout=120)
        connection.request("GET", "/metrics", headers={"Accept-Encoding": self._encoding})
        answer = connection.getresponse()
        size = 0
        while chunk := answer.read(262144):
            size += len(chunk)
        connection.close()
        if answer.headers.get("Content-Encoding", "identity") != self._encoding:
            raise ConnectionError(f"/metrics came as {answer.headers.get('Content-Encoding')}")
        if answer.status != 200:
            raise ConnectionError(f"/metrics answered {answer.status}")
        self.scrapes, self.mib, self.seconds = self.scrapes + 1, size / 1024 / 1024, time.perf_counter() - start

    def facts(self) -> dict[str, float]:
        return {"scrapes": self.scrapes, "mib": self.mib, "seconds": self.seconds}


def main() -> None:
    url, core = sys.argv[1:3]
    if int(core) >= 0:
        os.sched_setaffinity(0, {int(core)})
    scraper = Scraper(url)
    scraper.scrape()
    threading.Thread(target=_answer_lines, args=(scraper,), daemon=True).start()
    print(json.dumps(scraper.facts()), flush=True)
    while True:
        scraper.scrape()


def _answer_lines(scraper: Scraper) -> None:
    while sys.stdin.readline():
        print(json.dumps(scraper.facts()), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
