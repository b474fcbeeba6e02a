"""What the name of a column in a table of lengths says that the column holds.

Only names that can mean one thing are taken at their word; what may be a count and may be something
else is told apart from what is neither, so that nobody has to guess.
"""

import re
from typing import Literal

# "count", "frequency" and "share" are of documents for certain; "number" is beside bins only, since
# elsewhere it may number documents; "perhaps" may be counts, or sums of them.
Weighing = Literal["count", "frequency", "share", "number", "perhaps", "none"]

_LENGTHS = {
    *("length", "lengths", "len", "lens", "num_tokens", "n_tokens", "token_count", "token_counts"),
    *("tokens", "num_tok", "n_tok", "token_length", "token_lengths", "token_len", "tokens_count"),
    *("seq_len", "seqlen", "seqlens", "seq_lens", "seq_length", "sequence_length", "sequence_len"),
    *("doc_length", "doc_lengths", "doc_len", "document_length", "document_lengths"),
    *("document_len", "length_tokens", "length_in_tokens", "number_of_tokens", "sequence_lengths"),
}
_COUNTS = {"count", "counts", "weight", "weights"}
_FREQUENCIES = {"frequency", "frequencies", "freq", "freqs"}
_SHARES = {
    *("percent", "percents", "percentage", "percentages", "perc", "pct", "%", "share", "shares"),
    *("fraction", "fractions", "frac", "proportion", "proportions", "probability", "prob"),
}
_SUMS = {"cum", "cumulative", "cumul", "cdf", "pdf", "density", "mass", "hist", "histogram"}
_DOCUMENT = {"doc", "document", "sample", "sequence", "seq", "example", "row", "item"}
_DOCUMENTS = {f"{noun}s" for noun in _DOCUMENT}
_NUMBER = {"num", "number", "n", "no", "#"}
_FILLING = {"of", "the", "in", "per", "bin", "bucket", "total", "rel", "relative"}
# What a document has many of: its word count says nothing of how many documents there are.
_PARTS = {
    *("word", "words", "char", "chars", "character", "characters", "byte", "bytes", "line"),
    *("lines", "sentence", "sentences", "turn", "turns", "message", "messages", "page", "pages"),
    *("image", "images", "token", "tokens", "paragraph", "paragraphs"),
}
_UPPER = {"upper", "max", "maximum", "high", "hi", "right", "upto", "<=", "≤"}
_LOWER = {"lower", "min", "minimum", "low", "lo", "left", ">=", "≥"}
_ENDS = {"to", "end", "stop", "last", "up_to", "bin_end", "bucket_end", "range_end"}
_BEGINS = {"from", "start", "begin", "first", "bin_start", "bucket_start", "range_start"}
_OF_BOUNDS = {
    *("bound", "bounds", "edge", "edges", "limit", "bin", "bucket", "range", "length", "len"),
    *("tokens", "inclusive", *_DOCUMENT),
}
_LABELS = {
    *("id", "ids", "idx", "index", "key", "name", "uid", "uuid", "shard", "file", "path", "url"),
    *("date", "day", "month", "time", "timestamp", "input", "text"),
}


def holds_lengths(name: str) -> bool:
    """Whether a column of this name has lengths in tokens."""
    return "_".join(_words(name)) in _LENGTHS


def weighing(name: str) -> Weighing:
    """Return how a column of this name says how many documents there are."""
    words = set(_words(name))
    known = words & (_COUNTS | _FREQUENCIES | _SHARES)
    rest = words - known - _DOCUMENT - _DOCUMENTS - _NUMBER - _FILLING
    if known and not rest:
        if words & _SHARES:
            return "share"
        return "frequency" if words & _FREQUENCIES else "count"
    if known or words & _SUMS:
        return "none" if words & _PARTS else "perhaps"
    return "number" if not rest and words & (_NUMBER | _DOCUMENTS) else "none"


def is_upper(name: str) -> bool:
    """Whether a column of this name has the last length of each bin."""
    return _bounds(name, _UPPER, _ENDS)


def is_lower(name: str) -> bool:
    """Whether a column of this name has the first length of each bin."""
    return _bounds(name, _LOWER, _BEGINS)


def is_label(name: str) -> bool:
    """Whether a column of this name tells rows apart, so that 3-17 is no range."""
    return bool(_LABELS & set(_words(name)))


def _bounds(name: str, side: set[str], whole: set[str]) -> bool:
    words = _words(name)
    return "_".join(words) in whole or (
        bool(side & set(words)) and not set(words) - side - _OF_BOUNDS
    )


def _words(name: str) -> list[str]:
    """Return the words of a name, be it written num_tokens, num-tokens or numTokens."""
    parted = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    return re.findall(r"[^\W_]+|[<>]=|[%#≤≥]", parted)
