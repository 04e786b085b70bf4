"""Tokenizers: WordPiece for BERT, byte-level BPE for GPT-2, by the ``tokenizers`` library."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from dlperf_hpc.errors import DataError
from dlperf_hpc.files import open_regular

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
        try:
            with open_regular(path) as file:
                size = os.fstat(file.fileno()).st_size
        except OSError as error:
            raise DataError(f"{path}: cannot be read as a vocabulary: {error.strerror}") from error
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
    """A WordPiece vocabulary of the text: the same one for the same text.

    ``texts`` is called twice. The library numbers single characters in an order that differs from
    process to process, and breaks ties by number; so they are given to it, sorted, with the
    special tokens.
    """
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
