"""Binds pods at a steady rate: `python -m tests.bench.binder API_URL SCHEDULER_URL CAFILE SCENE SCALE SEED RATE CORE`.

What kube-scheduler does for each: the pod appears, `/filter`, `/bind` to the node that was chosen. Prints how many were
bound and what went wrong for each line on its standard input.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

from tests.bench.calls import WireCaller
from tests.bench.scenes import Scale, Scene, filter_body, node_name, scenes
from tests.reference.model import Object


class Binder:
    """One serial kube-scheduler."""

    def __init__(self, api: WireCaller, scheduler: WireCaller, names: list[str]) -> None:
        self._api = api
        self._scheduler = scheduler
        self._names = names
        self.bound = 0
        self.problems: list[str] = []

    def place(self, pod: Object) -> None:
        """Filter and bind one pod."""
        self._api.post("/bench/pods", json.dumps(pod).encode())
        chosen = json.loads(self._scheduler.post("/filter", filter_body(pod, self._names)))
        nodes = chosen["NodeNames"]
        if not nodes:
            self.problems.append(f"filter: {chosen['Error'] or 'nothing fits'}")
            return
        meta = pod["metadata"]
        call = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": nodes[0]}
        error = json.loads(self._scheduler.post("/bind", json.dumps(call).encode()))["Error"]
        if error:
            self.problems.append(f"bind: {error}")
        else:
            self.bound += 1

    def facts(self) -> dict[str, Any]:
        return {"bound": self.bound, "problems": len(self.problems), "first_problems": self.problems[:3]}


def _asked(scene: Scene, seed: int, number: int) -> Object:
    pod = scene.asking(seed + 9, 1)[0]
    pod["metadata"] |= {"name": f"bind-{number}", "uid": f"uid-bind-{number}"}
    return pod


def main() -> None:
    api_url, scheduler_url, cafile, name, size, seed, rate, core = sys.argv[1:9]
    if int(core) >= 0:
        os.sched_setaffinity(0, {int(core)})
    scale = Scale(*map(int, size.split("x")))
    scene = next(item for item in scenes(scale) if item.name == name)
    names = [node_name(at) for at in range(scale.names)]
    with WireCaller(api_url) as api, WireCaller(scheduler_url, cafile) as scheduler:
        binder = Binder(api, scheduler, names)
        threading.Thread(target=_answer_lines, args=(binder,), daemon=True).start()
        print(json.dumps(binder.facts()), flush=True)
        due = time.monotonic()
        for number in range(1_000_000):
            binder.place(_asked(scene, int(seed), number))
            due += 1 / float(rate)
            time.sleep(max(0.0, due - time.monotonic()))


def _answer_lines(binder: Binder) -> None:
    while sys.stdin.readline():
        print(json.dumps(binder.facts()), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
