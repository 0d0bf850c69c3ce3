"""How filter time grows with pods and with nodes, in process."""

from __future__ import annotations

import asyncio
import gc

from tests.bench import application
from tests.bench.calls import AppCaller
from tests.bench.figures import Figure, measure
from tests.bench.scenes import Scale, Scene, filter_body, node_name, scenes
from tests.reference.model import Config
from tests.reference.subject import Subject


def growth(loop: asyncio.AbstractEventLoop, seed: int, calls: int, small: int, large: int) -> dict[str, float]:
    """Factors of the in-process p50: pods five-fold at `small` nodes, and nodes from `small` to `large`, all names."""
    base = _p50(loop, Scale(small, 8, 10 * small), seed, calls, all_names=False)
    pods = _p50(loop, Scale(small, 8, 50 * small), seed, calls, all_names=False)
    few = _p50(loop, Scale(small, 8, 2 * small), seed, calls, all_names=True)
    many = _p50(loop, Scale(large, 8, 2 * large), seed, calls, all_names=True)
    return {
        "growth of filter p50: pods x 5 (floor 1.1)": pods.p50 / base.p50,
        f"growth of filter p50: nodes x {large / small:.0f}, all names (floor {large / small:.0f})": many.p50 / few.p50,
    }


def _p50(loop: asyncio.AbstractEventLoop, scale: Scale, seed: int, calls: int, all_names: bool) -> Figure:
    scene = _scene(scale, all_names)
    subject = loop.run_until_complete(Subject.load(scene.nodes(seed), scene.pods(seed), Config()))
    caller = AppCaller(application.ours(subject), loop)
    names = [node_name(i) for i in range(scale.nodes)]
    bodies = [filter_body(pod, names if all_names else names[:100]) for pod in scene.asking(seed, 20)]
    gc.collect()
    return measure(lambda: caller.time_all("/filter", [bodies[i % len(bodies)] for i in range(calls)]))


def _scene(scale: Scale, all_names: bool) -> Scene:
    wanted = "filter-all" if all_names else "filter-names"
    return next(scene for scene in scenes(scale) if scene.name == wanted)
