"""Damaged records and damaged frame heads: none is accepted, none crashes, none reaches the unpickler.

    python tests/unit/codecs/frames/mutations.py records 1000000 [seed]

The alarm is a value whose unpickling calls a function of this module; an audit hook counts, besides, every class or
function that any unpickler looks up. Both must stay silent for what is damaged, and are tried with what is not.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Callable

import frame_programs
from sojourn.codecs import frames
from sojourn.codecs.errors import PinNotSatisfied, RecordError
from sojourn.codecs.keyring import Keyring
from sojourn.codecs.record import Envelope, Index, Record, Status
from sojourn.codecs.seal import open_record, seal_record

looked_up: Counter[str] = Counter()
rung: list[int] = []


def ring(number: int) -> int:
    """Called by unpickling an `Alarm`."""
    rung.append(number)
    return number


class Alarm:
    def __reduce__(self) -> tuple[Callable[[int], int], tuple[int]]:
        return ring, (1,)


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if event == "pickle.find_class":
        looked_up[f"{arguments[0]}.{arguments[1]}"] += 1


def suspended_frame() -> frames.Frame:
    target = frame_programs.managers([])
    target.send(None)
    frame = frames.dump({"branch": target, "alarm": Alarm()})
    frames.discard(target)
    return frame


KEYS = Keyring.ephemeral(random.Random(1).randbytes)
READER = ("default", "order-42")


def sealed(namespace: str, actor: str, run: str, transition: int, frame: frames.Frame) -> bytes:
    index = Index(actor, run, "onboard", Status.SUSPENDED, transition, 1.0, 2.0, pin=frame.pin)
    record = Record(index, Envelope(f"c{transition}", "c0", 3), frame.data)
    return seal_record(record, KEYS, namespace=namespace)


def read(data: bytes) -> object:
    """As an owner reads a record: the seal, then the frame."""
    record = open_record(data, KEYS, namespace=READER[0], actor=READER[1])
    return frames.load(record.frame, record.index.pin)


def damaged(chooser: random.Random, originals: list[bytes]) -> bytes:
    """One of the records with bytes changed, cut, inserted, repeated, or with a part of another one."""
    data = bytearray(originals[chooser.randrange(2)])
    for _ in range(1 + chooser.randrange(3)):
        at = chooser.randrange(len(data)) if data else 0
        match chooser.randrange(7):
            case 0 | 1 if data:
                data[at] ^= 1 << chooser.randrange(8)
            case 2 if data:
                data[at] = chooser.randrange(256)
            case 3:
                del data[at : at + 1 + chooser.randrange(40)]
            case 4:
                data[at:at] = chooser.randbytes(1 + chooser.randrange(40))
            case 5:
                other = originals[chooser.randrange(len(originals))]
                size = 1 + chooser.randrange(len(other))
                data[at : at + size] = other[at : at + size]
            case _:
                end = at + chooser.randrange(60)
                data[end:end] = data[at:end]
    return bytes(data)


def damage_records(count: int, chooser: random.Random) -> None:
    frame = suspended_frame()
    good = [sealed(*READER, "r1", 7, frame), sealed(*READER, "r1", 8, frame)]
    others = [
        sealed("other", READER[1], "r1", 7, frame),  # another namespace's
        sealed(READER[0], "order-43", "r1", 7, frame),  # another actor's, of the same length
        sealed(*READER, "r2", 7, frame),  # another run's: its own tag holds, no part of it fits elsewhere
    ]
    whole = {*good, others[2]}
    refused: Counter[str] = Counter()
    for number in range(count):
        data = damaged(chooser, [*good, *others]) if number % 50 else others[number // 50 % 2]
        if data in whole:
            refused["the same as it was"] += 1
            continue
        try:
            read(data)
        except RecordError as error:
            refused[type(error).__name__] += 1
        assert not rung, data
        assert not looked_up, data
    assert refused.total() == count
    print(dict(refused.most_common()))
    read(good[0])
    assert rung == [1]  # the alarm works
    assert looked_up[f"{__name__}.ring"] == 1


def damage_heads(count: int, chooser: random.Random) -> None:
    data = suspended_frame().data
    head = 8 + int.from_bytes(data[4:8], "little")
    refused = 0
    for _ in range(count):
        broken = bytearray(data)
        for _ in range(1 + chooser.randrange(3)):
            broken[chooser.randrange(head)] = chooser.randrange(256)
        if bytes(broken) == data:
            refused += 1
            continue
        try:
            frames.load(bytes(broken))
        except PinNotSatisfied:
            refused += 1
        assert not rung, broken
    assert refused == count
    frames.load(data)
    assert rung == [1]


def main(kind: str, count: str, seed: str = "") -> None:
    sys.addaudithook(_audit)
    chosen = int(seed or random.SystemRandom().randrange(1 << 32))
    start = time.perf_counter()
    print(f"{count} damaged {kind}, seed {chosen}", flush=True)
    {"records": damage_records, "heads": damage_heads}[kind](int(count), random.Random(chosen))
    print(f"refused {count} in {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    sys.modules["mutations"] = sys.modules["__main__"]
    for made in (ring, Alarm):
        made.__module__ = "mutations"
    __name__ = "mutations"  # frames find code by module name
    main(*sys.argv[1:])
