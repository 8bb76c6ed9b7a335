"""Exchanges of messages in SimGrid: a second opinion of the planner's switches.

Reads a case as JSON from the file that the argument names, and prints the simulated seconds.
Transfers share links fairly (CM02: no factors of TCP, no acknowledgements on the other way).
"""

import json
import sys

from simgrid import Actor, Barrier, Comm, Engine

OPTIONS = [
    "--cfg=network/model:CM02",
    "--cfg=network/crosstraffic:0",
    "--log=root.thres:warning",
]


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        case = json.load(file)
    engine = Engine(["simgrid"] + OPTIONS)
    engine.load_platform(case["platform"])
    hosts = [engine.host_by_name(name) for name in case["hosts"]]
    barrier = Barrier(len(hosts)) if case["barrier"] else None

    def send(rank):
        for receivers in case["turns"]:
            Comm.sendto(hosts[rank], hosts[receivers[rank]], case["bytes"])
            if barrier:
                barrier.wait()

    for rank, host in enumerate(hosts):
        Actor.create(f"rank{rank}", host, send, rank)
    engine.run()
    print(Engine.clock)


main()
