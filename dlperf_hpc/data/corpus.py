"""Documents out of plain text and of wikiextractor's JSON lines, and sentences out of these."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dlperf_hpc.errors import DataError, raising
from dlperf_hpc.files import open_regular

# The end of a sentence: a stop, perhaps a closing quote or bracket, white space, and what a
# sentence may begin with. "e.g. the" has no capital behind it.
_SENTENCE_END = re.compile(r"""(?:(?<=[.!?])|(?<=[.!?]["')\]]))\s+(?=["'(\[]*[A-Z0-9])""")


def text_files(inputs: Sequence[Path]) -> list[Path]:
    """The files named, and those in the directories named, in order of their names. Hidden files
    are passed over. DataError for what is not there, or for a directory of none."""
    found: list[Path] = []
    for path in inputs:
        if os.path.isfile(path):  # which never raises
            found.append(path)
        elif os.path.isdir(path):
            visible = (p for p in path.rglob("*") if "/." not in f"/{p.relative_to(path)}")
            inside = sorted(filter(Path.is_file, visible))
            if not inside:
                raise DataError(f"{path}: no file is in this directory")
            found += inside
        else:
            raise DataError(f"{path}: {_why_not(path)}")
    return found


def _why_not(path: Path) -> str:
    try:
        open_regular(path).close()
    except FileNotFoundError:
        pass
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return "no such file or directory"


def documents(path: Path, whole_files: bool) -> Iterator[str]:
    """The documents of one file that are not empty. A file whose first line is a JSON object is
    read as JSON lines, the document of each in ``"text"`` (wikiextractor's and Megatron's form). Of
    other files blank lines separate documents, or with ``whole_files`` each is one. DataError if
    the file is not readable UTF-8 text."""
    try:
        with io.TextIOWrapper(open_regular(path), encoding="utf-8") as file:
            yield from _documents(path, file, whole_files)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: not UTF-8 text ({error.reason}, byte {error.object[error.start]:#04x}):"
            " convert it (iconv), or leave it out"
        ) from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def _documents(path: Path, lines: Iterator[str], whole_files: bool) -> Iterator[str]:
    numbered = _numbered(path, lines)
    before: list[tuple[int, str]] = []
    for number, line in numbered:
        before.append((number, line))
        if line.strip():
            break
    rest = itertools.chain(before, numbered)
    documents: Iterable[str]
    if before and _is_object(before[-1][1]):
        documents = (_json_text(path, number, line) for number, line in rest if line.strip())
    elif whole_files:
        documents = ["".join(line for _, line in rest)]
    else:
        documents = _paragraphs(line for _, line in rest)
    yield from filter(str.strip, documents)


def _numbered(path: Path, lines: Iterator[str]) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(lines, 1):
        if "\0" in line:
            raise DataError(f"{path}: line {number}: a NUL byte: not a text file")
        yield number, line


def _paragraphs(lines: Iterable[str]) -> Iterator[str]:
    for filled, group in itertools.groupby(lines, lambda line: bool(line.strip())):
        if filled:
            yield "".join(group)


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _json_text(path: Path, number: int, line: str) -> str:
    try:
        text = json.loads(line)["text"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        where = f"{path}: line {number}"
        raise DataError(f'{where}: not a JSON object with "text", as those before it') from error
    if not isinstance(text, str):
        raise DataError(f'{path}: line {number}: "text" is {type(text).__name__}, not a string')
    return text


def sentences(document: str, one_per_line: bool) -> list[str]:
    """The sentences of a document: its lines, or split at stops before a capital or a digit."""
    if one_per_line:
        return [line.strip() for line in document.splitlines() if line.strip()]
    return _SENTENCE_END.split(" ".join(document.split()))


def spool(
    files: Sequence[Path], whole_files: bool, shards: int, directory: Path
) -> tuple[list[Path], int]:
    """Every shard's documents in a file of JSON strings, and the number of all documents. Documents
    go to shards in order, by the share of the text's bytes before them: a document's shard depends
    on the text and the number of shards alone. DataError if a shard gets none."""
    total = sum(map(os.path.getsize, files)) or 1
    paths = [directory / f"{number}.spool" for number in range(shards)]
    counts = [0] * shards
    found = (document for file in files for document in documents(file, whole_files))
    for number, group in itertools.groupby(_placed(found, shards, total), lambda each: each[0]):
        with open(paths[number], "a", encoding="utf-8") as spool_file:  # numbers only ever go up
            for _, document in group:
                spool_file.write(json.dumps(document) + "\n")
                counts[number] += 1
    if not sum(counts):
        raise DataError(f"{files[0]}: no text in {len(files)} file(s): nothing to prepare")
    if not all(counts):
        raise DataError(f"{sum(counts)} documents do not fill {shards} shards: use fewer --shards")
    return paths, sum(counts)


def _placed(documents: Iterable[str], shards: int, total: int) -> Iterator[tuple[int, str]]:
    before = 0
    for document in documents:
        yield min(before * shards // total, shards - 1), document
        before += len(document.encode())


def spooled(path: Path) -> Iterator[str]:
    """The documents of one shard."""
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


# --- tokenizers: WordPiece for BERT, byte-level BPE for GPT-2


FILE = "tokenizer.json"
_MOST_BYTES = 1 << 28
BERT_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
END_OF_TEXT = "<|endoftext|>"


def _library() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        text = "preparing data needs the tokenizers library: pip install 'dlperf_hpc[data]'"
        raise DataError(f"{text} ({error})") from error
    return tokenizers


def _wordpiece(model: Any, lowercase: bool) -> Any:
    t = _library()
    made = t.Tokenizer(model)
    made.normalizer = t.normalizers.BertNormalizer(lowercase=lowercase)
    made.pre_tokenizer = t.pre_tokenizers.BertPreTokenizer()
    made.decoder = t.decoders.WordPiece()
    return made


def _byte_level(model: Any) -> Any:
    t = _library()
    made = t.Tokenizer(model)
    made.pre_tokenizer = t.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = t.decoders.ByteLevel()
    return made


def read_bert(vocab: Path, lowercase: bool) -> Any:
    """WordPiece of a ``vocab.txt``. DataError if it lacks one of BERT's special tokens."""
    t = _library()
    _look(vocab)
    words = _read(lambda: t.models.WordPiece.read_file(str(vocab)), vocab)
    absent = [token for token in BERT_SPECIAL if token not in words]
    if absent:
        text = f"{vocab}: {', '.join(absent)}: not in this vocabulary of {len(words)} tokens"
        raise DataError(f"{text}: expected BERT's vocab.txt, one token a line")
    return _wordpiece(t.models.WordPiece(words, unk_token="[UNK]"), lowercase)


def read_gpt2(vocab: Path, merges: Path) -> Any:
    """Byte-level BPE of a ``vocab.json`` and its ``merges.txt``. DataError if they are not that."""
    t = _library()
    _look(vocab, merges)
    words, pairs = _read(lambda: t.models.BPE.read_file(str(vocab), str(merges)), vocab)
    if END_OF_TEXT not in words:
        text = f"{vocab}: {END_OF_TEXT}: not in this vocabulary of {len(words)} tokens"
        raise DataError(f"{text}: expected GPT-2's vocab.json")
    return _byte_level(_read(lambda: t.models.BPE(words, pairs), merges))


def _look(*paths: Path) -> None:
    """DataError for what is no file: the library would wait for it, or read it for ever."""
    for path in paths:
        cannot = f"{path}: cannot be read as a vocabulary"
        with raising(DataError, cannot), open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
        if size > _MOST_BYTES:
            raise DataError(
                f"{path}: {size} bytes are no vocabulary: expected {_MOST_BYTES} at most"
            )


def _read(read: Callable[[], Any], path: Path) -> Any:
    try:
        return read()
    except Exception as error:  # the library raises nothing more special
        raise DataError(f"{path}: cannot be read as a vocabulary: {error}") from error


def train_bert(texts: Callable[[], Iterable[str]], size: int, lowercase: bool) -> Any:
    """A WordPiece vocabulary of the text: the same one for the same text. ``texts`` is called
    twice. The library numbers single characters in an order that differs from process to process,
    and breaks ties by number; so they are given to it, sorted, with the special tokens."""
    t = _library()
    learnt = _wordpiece(t.models.WordPiece(unk_token="[UNK]"), lowercase)
    characters: set[str] = set()
    for text in texts():
        characters.update(learnt.normalizer.normalize_str(text))
    alphabet = sorted(c for c in characters if not c.isspace())
    fixed = [*BERT_SPECIAL, *alphabet, *(f"##{c}" for c in alphabet)]
    _check_size(size, len(fixed))
    trainer = t.trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=fixed, show_progress=False
    )
    learnt.train_from_iterator(texts(), trainer)
    words = learnt.get_vocab()
    return _wordpiece(t.models.WordPiece(words, unk_token="[UNK]"), lowercase)


def train_gpt2(texts: Callable[[], Iterable[str]], size: int) -> Any:
    """A byte-level BPE of the text, <|endoftext|> its first token."""
    t = _library()
    alphabet = sorted(t.pre_tokenizers.ByteLevel.alphabet())
    _check_size(size, 1 + len(alphabet))
    learnt = _byte_level(t.models.BPE())
    trainer = t.trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    learnt.train_from_iterator(texts(), trainer)
    return learnt


def _check_size(size: int, least: int) -> None:
    if size < least:
        text = f"--vocab-size {size}: special tokens and single characters alone are {least}"
        raise DataError(f"{text}: at least that many")


def save(tokenizer: Any, directory: Path) -> str:
    """``tokenizer.json`` and the vocabulary files as others read them; SHA-256 of the former."""
    text = tokenizer.to_str(pretty=True)
    (directory / FILE).write_text(text, encoding="utf-8")
    tokenizer.model.save(str(directory))
    return hashlib.sha256(text.encode()).hexdigest()


def load(directory: Path) -> Any:
    """The tokenizer that :func:`save` left."""
    return _library().Tokenizer.from_file(str(directory / FILE))


def encode(tokenizer: Any, texts: list[str]) -> Iterator[list[int]]:
    """Token ids of each text, nothing added."""
    for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False):
        yield encoding.ids
