"""The chaos harness: real processes, seeded faults, and a judge that knows only what clients were told and what happened outside.

    python -m tests.chaos --seed 7 --seconds 600 --replicas 3 --nodes 4 --workflows 5000

`plan` draws the faults from the seed; `world` owns the processes (`servers`, `fleet`, and the `proxy` between them) and `faults` carries a
plan out on them. Meanwhile `workload` starts workflows of eleven kinds, talks to them, and writes down what it was promised; `watch` writes
down every commit and every lease; the workflows themselves (`app/`) write their effects to a journal. Afterwards `judge`, which is pure,
compares. A run is replayed by its seed: the faults, their times and targets are the same; what the machine makes of them is not.

`sabotage/` breaks a node on purpose, to show that the judge would notice. It is chosen by SOJOURN_CHAOS_SABOTAGE and lives here only.
"""
