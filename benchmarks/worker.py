"""One peer in a process of its own, so that no other's spinning threads take its cores.

Reads a line of JSON, answers with one: {"do": "prepare" | "time" | "stop", …}.
"""

from __future__ import annotations

import gc
import json
import sys
import time

import numpy as np

from benchmarks.cases import CASES, draw
from benchmarks.peers import PEERS, Prepared, pin
from benchmarks.whole import WHOLE, WHOLE_CASES

SPINNING = 0.2  # seconds; for some 50 ms after a session was made its threads are in the way of all others


def main() -> None:
    name, threads = sys.argv[1], int(sys.argv[2])
    pin(threads)
    prepared: Prepared | None = None
    for line in sys.stdin:
        order = json.loads(line)
        answer: dict[str, object] = {}
        if order["do"] == "prepare":
            prepared = None
            gc.collect()
            try:
                exact = np.load(order["exact"])
                if "whole" in order:
                    prepared = WHOLE[name](WHOLE_CASES[order["whole"]], threads)
                else:
                    case = CASES[order["case"]]
                    prepared = PEERS[name](case, draw(case), threads)
                    prepared.call()
                Y, Y_h = prepared.outputs()
                answer["error"] = float(max(np.abs(Y - exact["Y"]).max(), np.abs(Y_h - exact["Y_h"]).max()))
                began, count = time.perf_counter(), 0
                while "whole" in order and time.perf_counter() - began < SPINNING:
                    prepared.call()
                began = time.perf_counter()
                while time.perf_counter() - began < 0.05 or count < 2:
                    prepared.call()
                    count += 1
                answer["each"] = (time.perf_counter() - began) / count
            except Exception as error:  # a peer that cannot do a case is left out of it
                prepared = None
                answer["refuses"] = " ".join(str(error).split())[:200]
        elif order["do"] == "time":
            assert prepared is not None
            call, count = prepared.call, order["count"]
            warm = max(1, count // 10)
            for _ in range(warm):
                call()
            began = time.perf_counter()
            for _ in range(count):
                call()
            answer["seconds"] = (time.perf_counter() - began) / count
        else:
            return
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
