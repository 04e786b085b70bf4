"""TensorFlow's own reader on our TFRecords, and its own writer for ours. Argument: RESULTS.json."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import tensorflow as tf

INTEGERS = {
    "input_ids": 16,
    "input_mask": 16,
    "segment_ids": 16,
    "masked_lm_positions": 3,
    "masked_lm_ids": 3,
    "next_sentence_labels": 1,
}
OTHERS: list[dict[str, Any]] = [
    {"a": [0, 127, 128, 16384, 2**31, 2**62], "b": [0.5, -1.25]},
    {"a": [7], "empty": [], "b": [3.0]},
    {"negative": [-1, -(2**40)], "b": [0.0]},
]


def read(path: Path) -> dict[str, Any]:
    features: dict[str, Any] = {
        n: tf.io.FixedLenFeature([k], tf.int64) for n, k in INTEGERS.items()
    }
    features["masked_lm_weights"] = tf.io.FixedLenFeature([3], tf.float32)
    found: dict[str, Any] = {name: [] for name in features}
    for record in tf.data.TFRecordDataset(str(path)):
        for name, values in tf.io.parse_single_example(record, features).items():
            found[name].append(values.numpy().tolist())
    return found


def feature(values: list[Any]) -> Any:
    if values and isinstance(values[0], float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def write(path: Path) -> None:
    with tf.io.TFRecordWriter(str(path)) as writer:
        for content in OTHERS:
            made = {name: feature(values) for name, values in content.items()}
            features = tf.train.Features(feature=made)
            writer.write(tf.train.Example(features=features).SerializeToString())


results = Path(sys.argv[1])
write(results.parent / "theirs.tfrecord")
found = {"ours": read(results.parent / "ours.tfrecord"), "theirs": OTHERS}
results.write_text(json.dumps(found), encoding="utf-8")
