"""The demo's corpus: real documents, lossless and the same on every build."""

import filecmp
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from libra.examples.corpus import Corpus, build_corpus
from libra.examples.tokenizer import Tokenizer

MODULE = '''"""About lines."""

class Line:
    """One line.\x0c"""

    def cut(self, at):
        def half(): return at  # naïve — é
        return half

async def wait(): pass
'''


STDLIB = Path(sysconfig.get_path("stdlib"))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return build_corpus(tmp_path_factory.mktemp("corpus"), root=STDLIB / "asyncio")


def test_documents_are_modules_functions_and_docstrings(tmp_path: Path) -> None:
    """The stated rule, on one module: whole, docstrings, functions with what is inside."""
    (tmp_path / "zone.py").write_text("zone = 1")
    (tmp_path / "line.py").write_text(MODULE)
    (tmp_path / "area.py").write_text("area = 2")
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "old.py").write_text("print 'two'")
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "test_line.py").write_text("assert True")

    corpus = build_corpus(tmp_path / "out", root=tmp_path)

    assert _texts(corpus) == [
        "area = 2",
        MODULE,
        "About lines.",
        "One line.\x0c",
        "async def wait(): pass",
        "\n".join(MODULE.split("\n")[5:8]),
        "        def half(): return at  # naïve — é",
        "zone = 1",
    ]


def test_tokens_are_lossless(corpus: Corpus) -> None:
    """A real module decodes to the very text that was read."""
    text = (STDLIB / "asyncio" / "events.py").read_text()

    ids = corpus.tokenizer.encode(text)

    assert corpus.tokenizer.decode(ids) == text
    assert corpus.tokenizer.vocabulary_size == 1024
    assert len(ids) < 0.6 * len(text)


def test_lengths_have_a_long_tail(corpus: Corpus) -> None:
    """Whole modules stand beside one-line functions: what makes attention uneven."""
    assert corpus.lengths.dtype == np.int64
    assert len(corpus.lengths) > 500
    assert corpus.lengths.min() >= 1
    assert np.percentile(corpus.lengths, 99) > 10 * np.median(corpus.lengths)


def test_builds_are_equal_byte_for_byte(tmp_path: Path) -> None:
    """Two processes make the same files, whatever their hash seeds."""
    script = (
        "import sys; from pathlib import Path; from libra.examples.corpus import build_corpus; "
        "build_corpus(Path(sys.argv[1]), root=Path(sys.argv[2]))"
    )
    for seed in ("1", "2"):
        command = [sys.executable, "-c", script, str(tmp_path / seed), str(STDLIB / "json")]
        subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": seed}, timeout=60, check=True)

    files = sorted(path.name for path in (tmp_path / "1").iterdir())
    assert files == ["offsets.npy", "tokens.npy", "words.json"]
    assert filecmp.cmpfiles(tmp_path / "1", tmp_path / "2", files, shallow=False)[0] == files


def test_ranges_are_checked(corpus: Corpus) -> None:
    """A range past a document's end is an error, not the next document's tokens."""
    length = int(corpus.lengths[3])

    assert len(corpus.tokens(3, 1, length)) == length - 1
    with pytest.raises(ValueError, match="of document 3"):
        corpus.tokens(3, 0, length + 1)


def test_missing_sources_are_named(tmp_path: Path) -> None:
    """A Python without its sources is told apart from a bug."""
    with pytest.raises(FileNotFoundError, match="No Python sources in"):
        build_corpus(tmp_path / "out", root=tmp_path)


@pytest.mark.parametrize("size", [255, 70_000])
def test_vocabulary_size_is_checked(size: int) -> None:
    """A vocabulary without bytes would lose text, one above 16 bits would wrap."""
    with pytest.raises(ValueError, match=f"vocabulary_size={size}: must be in"):
        Tokenizer.count(["text"], size)


def _texts(corpus: Corpus) -> list[str]:
    return [
        corpus.tokenizer.decode(corpus.tokens(document, 0, int(length)))
        for document, length in enumerate(corpus.lengths)
    ]
