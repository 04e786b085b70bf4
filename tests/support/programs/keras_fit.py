"""A program of the tests: Keras' ``fit`` in one process.

``keras_fit.py --steps 40 --batch-size 16``, of which an epoch has 20 steps.
"""

from __future__ import annotations

import argparse

import keras
import numpy

WIDTH, EPOCH = 256, 20


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=16)
    given = parser.parse_args()
    layers = [keras.layers.Dense(WIDTH, activation="relu") for _ in range(4)]
    model = keras.Sequential([keras.Input((WIDTH,)), *layers, keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse")
    data = numpy.random.default_rng(1).normal(size=(EPOCH * given.batch_size, WIDTH))
    model.fit(data, data[:, :1], given.batch_size, epochs=-(-given.steps // EPOCH))


if __name__ == "__main__":
    main()
