"""Real documents that are on any machine: the source of the running Python's standard library.

The rule, applied to every ``.py`` file below the standard library's folder, in the order of
their paths, without tests and site-packages and without files that are not Python 3:

- the module as a whole is a document;
- so is each function and method in it, with everything inside;
- so is the docstring of the module and of each class;
- a document longer than ``longest_tokens``, a packed sequence of the demo, is left out, so that
  every document is packed whole.

That gives the long tail of real corpora: thousands of short documents, a few very long ones.
The parent process builds the corpus once, into a folder; ranks open it memory-mapped. For one
interpreter the files come out the same, byte for byte.

Shapes: N documents, M tokens in all.
"""

import ast
import json
import sysconfig
import tokenize
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from libra.examples.tokenizer import Tokenizer

Int64 = NDArray[np.int64]
Tokens = NDArray[np.uint16]

_EXCLUDED = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test"})


class Corpus:
    """Tokens of N documents, read from the disk as they are needed.

    Attributes:
        lengths: [N] tokens of each document, at least 1.
        tokenizer: what made the tokens.
    """

    def __init__(self, tokens: Tokens, offsets: Int64, tokenizer: Tokenizer) -> None:
        self._tokens = tokens
        self._offsets = offsets
        self.lengths: Int64 = np.diff(offsets)
        self.tokenizer = tokenizer

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open what ``build_corpus`` saved in a folder."""
        tokens = np.load(folder / "tokens.npy", mmap_mode="r")
        offsets = np.load(folder / "offsets.npy")
        words = json.loads((folder / "words.json").read_text())
        return cls(tokens, offsets, Tokenizer(words))

    def tokens(self, document: int, begin: int, end: int) -> Tokens:
        """Return tokens ``begin:end`` of a document, without copying."""
        if not 0 <= begin <= end <= self.lengths[document]:
            raise ValueError(
                f"tokens {begin}:{end} of document {document}: it has {self.lengths[document]}"
            )
        start = self._offsets[document]
        return self._tokens[start + begin : start + end]


def build_corpus(
    folder: Path,
    *,
    longest_tokens: int = 0,
    vocabulary_size: int = 1024,
    root: Path | None = None,
) -> Corpus:
    """Tokenise the standard library into a folder, and open it.

    Args:
        folder: made if it is missing.
        longest_tokens: longer documents are left out; 0 keeps all.
        vocabulary_size: ids, the 256 of bytes included.
        root: folder of the sources; by default the running Python's standard library.

    Raises:
        FileNotFoundError: the standard library comes without sources.
    """
    root = root or Path(sysconfig.get_path("stdlib"))
    documents = [text for path in _source_files(root) for text in _documents(path)]
    if not documents:
        raise FileNotFoundError(
            f"No Python sources in {root}: the demo's documents are the standard library's "
            "sources, which this Python comes without."
        )
    tokenizer = Tokenizer.count(documents, vocabulary_size)
    encoded = [tokenizer.encode(text) for text in documents]
    if longest_tokens:
        encoded = [tokens for tokens in encoded if len(tokens) <= longest_tokens]
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "tokens.npy", np.concatenate(encoded))
    lengths = [len(tokens) for tokens in encoded]
    np.save(folder / "offsets.npy", np.cumsum([0, *lengths], dtype=np.int64))
    (folder / "words.json").write_text(json.dumps(tokenizer.words))
    return Corpus.open(folder)


def _source_files(root: Path) -> list[Path]:
    found = (path.relative_to(root) for path in root.rglob("*.py"))
    kept = [path for path in found if not _EXCLUDED & set(path.parts)]
    return [root / path for path in sorted(kept, key=Path.as_posix)]


def _documents(path: Path) -> list[str]:
    """Return the documents of one file, by the rule above; none if it is not Python 3."""
    try:
        with tokenize.open(path) as file, warnings.catch_warnings(action="ignore"):
            text = file.read()
            tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return []
    # The parser ends lines at newlines alone, str.splitlines also at form feeds.
    lines = text.split("\n")
    documents = [text]
    for node in _statements(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            documents.append("\n".join(lines[node.lineno - 1 : node.end_lineno]))
        elif isinstance(node, ast.Module | ast.ClassDef):
            documents.append(ast.get_docstring(node) or "")
    return [document for document in documents if document]


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the module and all its statements; expressions, most of a tree, define nothing."""
    pending: list[ast.AST] = [tree]
    for node in pending:
        yield node
        pending += [
            child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr)
        ]
