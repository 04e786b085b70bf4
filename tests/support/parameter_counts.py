"""Trainable numbers of our models in closed form: what their builders are held against."""

from __future__ import annotations

from dlperf_hpc.train.workloads.bert import BertConfig
from dlperf_hpc.train.workloads.gpt2 import Gpt2Config


def bert_parameters(config: BertConfig) -> int:
    """Trainable numbers in encoder, pooler, MLM head and NSP head.

    The vocabulary projection is tied to the word embedding and counted once.
    """
    h, norm = config.hidden, 2 * config.hidden
    embeddings = (config.vocab + config.max_positions + config.types) * h + norm
    attention = 4 * (h * h + h)
    feed_forward = 2 * h * config.ffn + config.ffn + h
    final_norm = norm if config.layer_norm == "pre" else 0
    encoder = config.layers * (attention + feed_forward + 2 * norm) + final_norm
    pooler = h * h + h
    mlm_head = h * h + h + norm + config.vocab
    nsp_head = 2 * h + 2
    return embeddings + encoder + pooler + mlm_head + nsp_head


def gpt2_parameters(config: Gpt2Config) -> int:
    """Trainable numbers; the output projection is the word embedding itself and counted once."""
    h, norm = config.hidden, 2 * config.hidden
    embeddings = (config.vocab + config.max_positions) * h
    attention = 4 * (h * h + h)
    feed_forward = 2 * h * config.ffn + config.ffn + h
    return embeddings + config.layers * (attention + feed_forward + 2 * norm) + norm
