"""`make soak`: millions of random steps over small worlds, by seeds; the oracle has its say every 20th step.

    python -m tests.reference.soak [--steps 2000000] [--seed 0] [--from-block 0] [--block N]

Work is cut into blocks of 400 steps, each a world and a life of its own made from (seed, block). A run that was
stopped goes on with `--from-block`; a block that fails is repeated alone with `--block`, the oracle asked every step.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

from tests.reference.lives import Life
from tests.reference.world_nodes import Size

STEPS_IN_BLOCK = 400
ORACLE_EVERY = 20
PROGRESS_S = 10.0
WORLDS = (Size(nodes=4, cards=4, quotas=False), Size(nodes=4, cards=4), Size(nodes=1, cards=4), Size(nodes=2, cards=2))
"""At most four nodes with four cards; with and without quotas."""


async def run_block(seed: int, block: int, oracle_every: int) -> list[str]:
    """What went wrong in one block; empty if nothing did."""
    life = Life(seed * 1_000_003 + block, WORLDS[block % len(WORLDS)], oracle_every=oracle_every)
    await life.run(STEPS_IN_BLOCK)
    return life.differences


def main(argv: list[str]) -> int:
    """0: every block agreed."""
    parser = argparse.ArgumentParser(prog="python -m tests.reference.soak", description=__doc__)
    parser.add_argument("--steps", type=int, default=2_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--from-block", type=int, default=0)
    parser.add_argument("--block", type=int, default=-1, help="only this block, with the oracle at every step")
    flags = parser.parse_args(argv)
    if flags.block >= 0:
        found = asyncio.run(run_block(flags.seed, flags.block, 1))
        print("\n".join(found) or "nothing differs")
        return 1 if found else 0
    return _all(flags.seed, flags.from_block, -(-flags.steps // STEPS_IN_BLOCK))


def _all(seed: int, first: int, blocks: int) -> int:
    print(f"soak: seed {seed}, blocks {first} to {blocks - 1} of {STEPS_IN_BLOCK} steps", flush=True)
    started = told = time.monotonic()
    for block in range(first, blocks):
        found = asyncio.run(run_block(seed, block, ORACLE_EVERY))
        if found:
            again = f"--seed {seed} --block {block}"
            print(f"soak: FAILED in block {block} ({again}):\n  " + "\n  ".join(found), flush=True)
            return 1
        now = time.monotonic()
        if now - told >= PROGRESS_S:
            told, done = now, block + 1 - first
            rate = done * STEPS_IN_BLOCK / (now - started)
            left_min = (blocks - block - 1) * STEPS_IN_BLOCK / rate / 60
            again = f"go on with --seed {seed} --from-block {block + 1}"
            print(
                f"soak: {(block + 1) * STEPS_IN_BLOCK} steps, {rate:.0f}/s, {left_min:.0f} min left; {again}",
                flush=True,
            )
    steps, took_s = (blocks - first) * STEPS_IN_BLOCK, time.monotonic() - started
    print(f"soak: {steps} steps in {took_s:.0f} s, seed {seed}: nothing differs", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
