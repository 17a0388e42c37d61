"""Frames and data to bytes and back. This layer knows no broker and does no I/O but reading a key file.

General layout: data (`data` for its names; `value_type`, `signature`, `unions`, `foreign`, `annotations`,
`json_guard`, `round_trip`, `paths`, `exceptions_data`, `traceback_text`), records (`record`, `seal`,
`keyring`), `durations`, `errors`; the rest is frames. Import names from here or from `data`, `seal`,
`keyring`, `record`, `durations`, `errors`; nothing else is public.
"""

from sojourn.codecs.data import Signature as Signature
from sojourn.codecs.data import Type as Type
from sojourn.codecs.durations import Backoff as Backoff
from sojourn.codecs.durations import Duration as Duration
from sojourn.codecs.durations import duration as duration
from sojourn.codecs.durations import format_duration as format_duration
from sojourn.codecs.exceptions_data import describe_exception as describe_exception
from sojourn.codecs.exceptions_data import rebuild_exception as rebuild_exception
from sojourn.codecs.json_guard import Limits as Limits
from sojourn.codecs.keyring import Keyring as Keyring
from sojourn.codecs.seal import open_record as open_record
from sojourn.codecs.seal import read_index as read_index
from sojourn.codecs.seal import reseal_record as reseal_record
from sojourn.codecs.seal import seal_record as seal_record
