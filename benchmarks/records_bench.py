"""What data and seals cost, beside the bare libraries they are made of.

Claims: a record of 600 bytes is sealed within 15 us and opened within 20 us; arguments of a usual step cost a
few microseconds each way, of which the checks before decoding are the smaller part. Ratios are to msgspec
alone, in the same run.

    python benchmarks/records_bench.py
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import random
import timeit
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import pytest
from sojourn.codecs import Keyring, Signature, Type, describe_exception, open_record, read_index, seal_record
from sojourn.codecs.json_guard import guard
from sojourn.codecs.record import Envelope, Index, Origin, Record, SourceLine, Status, Wait


@dataclasses.dataclass
class Address:
    street: str
    zip: int


@dataclasses.dataclass
class Profile:
    name: str
    age: int
    addresses: list[Address]
    born: dt.date | None = None


async def check(profile: Profile, limit: int, *, strict: bool = False) -> bool: ...


class Figure(NamedTuple):
    what: str
    microseconds: float
    against: float | None = None


def cost(work: Callable[[], Any], seconds: float = 0.2) -> float:
    """Return the microseconds of one call: the best of five rounds, since everything else only adds."""
    timer = timeit.Timer(work)
    rounds, _ = timer.autorange()
    number = max(1, int(rounds * seconds / 5 / max(timer.timeit(rounds), 1e-9)))
    return min(timer.repeat(5, number)) / number * 1e6


def a_record(frame_bytes: int) -> Record:
    origin = Origin("mail", 1_790_000_000_000_000_000, 42)
    line = SourceLine("app", "onboard", 12)
    index = Index("order-42", "r1a2b3c4", "onboard", Status.SUSPENDED, 7, 1.79e9, 1.79e9, stacks=((line,),))
    envelope = Envelope(
        "c2",
        "c1",
        4,
        waits=(Wait(0, 4, "receive", channels=("approval",)),),
        consumed=frozenset((origin,)),
        lease=origin,
    )
    return Record(index, envelope, random.Random(1).randbytes(frame_bytes))


def record_figures() -> list[Figure]:
    keyring = Keyring.ephemeral(random.Random(2).randbytes)
    figures = []
    for wanted in (600, 4_000, 64_000):
        empty = len(seal_record(a_record(0), keyring, namespace="default"))
        record = a_record(max(0, wanted - empty))
        data = seal_record(record, keyring, namespace="default")
        size = f"{len(data):,} bytes"
        figures += [
            Figure(
                f"seal a record of {size}",
                cost(lambda r=record: seal_record(r, keyring, namespace="default")),
            ),  # type: ignore[misc]  # bound now
            Figure(
                f"open a record of {size}",
                cost(lambda d=data: open_record(d, keyring, namespace="default", actor="order-42")),
            ),  # type: ignore[misc]  # bound now
        ]
    data = seal_record(a_record(300), keyring, namespace="default")
    figures.append(Figure("read the index of a record", cost(lambda: read_index(data))))
    figures.append(Figure("one mac for an id", cost(lambda: keyring.mac("id", "order-42", "r1a2b3c4", "7"))))
    return figures


def data_figures() -> list[Figure]:
    profile = Profile("Ada", 36, [Address("Main Street", 1234)], dt.date(1990, 1, 2))
    signature = Signature.of(check)
    args = (profile, 5)
    data = signature.encode_args(args)
    bare = msgspec.json.Decoder(tuple[tuple[Profile, int], dict[str, bool]])
    encode = msgspec.json.Encoder().encode
    many = Type(list[Profile])
    profiles = [profile] * 500
    large = many.encode(profiles)
    bare_many = msgspec.json.Decoder(list[Profile])
    return [
        Figure(
            f"encode and check arguments, {len(data)} bytes",
            cost(lambda: signature.encode_args(args)),
            cost(lambda: encode((args, {}))),
        ),
        Figure(
            f"decode arguments, {len(data)} bytes",
            cost(lambda: signature.decode_args(data)),
            cost(lambda: bare.decode(data)),
        ),
        Figure(f"guard arguments, {len(data)} bytes", cost(lambda: guard(data))),
        Figure(
            f"encode and check 500 objects, {len(large):,} bytes",
            cost(lambda: many.encode(profiles)),
            cost(lambda: encode(profiles)),
        ),
        Figure(
            f"decode 500 objects, {len(large):,} bytes",
            cost(lambda: many.decode(large)),
            cost(lambda: bare_many.decode(large)),
        ),
        Figure(f"guard 500 objects, {len(large):,} bytes", cost(lambda: guard(large))),
        Figure("describe an exception", cost(lambda: describe_exception(_raised()))),
    ]


def _raised() -> ValueError:
    try:
        raise ValueError("no")
    except ValueError as error:
        return error


def report() -> str:
    lines = []
    for figure in (*record_figures(), *data_figures()):
        ratio = f"{figure.microseconds / figure.against:6.1f} x msgspec alone" if figure.against else ""
        lines.append(f"{figure.what:<52} {figure.microseconds:9.2f} us  {ratio}".rstrip())
    return "\n".join(lines)


@pytest.mark.benchmark
def test_the_cost_of_records_and_data() -> None:
    print("\n" + report())


if __name__ == "__main__":
    print(report())
