"""Arguments, results, messages and exceptions as data (DESIGN 3, "Data"): the names that other layers use.

A `Type` converts one value, a `Signature` the arguments and the result of one function; both are built when
the function is registered, and refuse then what cannot cross. An exception becomes an `ErrorInfo`.
"""

from sojourn.codecs.exceptions_data import describe_exception as describe_exception
from sojourn.codecs.exceptions_data import rebuild_exception as rebuild_exception
from sojourn.codecs.exceptions_data import words as words
from sojourn.codecs.exceptions_data import words_of as words_of
from sojourn.codecs.json_guard import UNDECODABLE as UNDECODABLE
from sojourn.codecs.json_guard import Limits as Limits
from sojourn.codecs.signature import Signature as Signature
from sojourn.codecs.value_type import Type as Type
