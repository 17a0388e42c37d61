"""Workflows as their users write them, and the engine that carries them on.

- *What users write*: `workflow`, `step`, `channel`, `verbs`, `scopes`, `retry`, `lifespan`, `current`,
  `errors`, `limits`; a `registry` knows them by name.
- *From outside*: `client` and `handle`, over `requests` (asking the owner), `answers` (what it says) and
  `description`.
- *The engine*, pure: `intentions` and `inside` (what a workflow can yield, and where it may), `branches` and
  `drive` (its coroutines), `draft` and `turns` (the next record), `decide`, `ending`, `engine`; `events` go
  in and effects come out, `wire` turns them into messages and back, `states` and `outcomes` are its tables.
- *Running steps*: `execution`, with `attempts`, `step_threads` and `hop`.

Nothing is re-exported here: `workflow` and `step` are modules in this package, and functions in `sojourn`,
which is what users import.
"""
