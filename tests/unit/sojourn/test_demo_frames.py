"""How large the frames of the demo's workflows are where they wait: what `make demo` prints."""

from __future__ import annotations

from sojourn.examples import onboard as app

from sojourn.testing import World


async def test_the_frames_of_the_demo_stay_as_small_as_they_are() -> None:
    steps = {
        app.fetch_profile: lambda user, watched: app.Profile(user, f"{user}@example.org", watched),
        app.run_checks: lambda profile: True,
    }
    world = World(steps=steps)
    await world.start(app.onboard("user-007", watched=True), id="user-007")
    bytes_of = {}
    for actor in ("user-007", "watch-user-007"):
        record = world.record(actor)
        assert record is not None
        bytes_of[actor] = len(record.frame)
    # Measured: 322 and 224. An intention stands in each, and is stored as it says itself.
    assert bytes_of["user-007"] <= 330, bytes_of
    assert bytes_of["watch-user-007"] <= 232, bytes_of
