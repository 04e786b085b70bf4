"""A program of the tests: Keras' ``fit`` in one process.

``keras_fit.py --steps 40 --batch-size 16``, of which an epoch has 20 steps; ``--timer``: under a
Timer, by a callback.
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
    parser.add_argument("--timer", action="store_true")
    given = parser.parse_args()
    callbacks = []
    if given.timer:
        from dlperf_hpc import Timer

        timer = Timer(batch_size=given.batch_size, model="keras-toy", stop=False)
        callbacks.append(
            keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: timer.step())
        )
    layers = [keras.layers.Dense(WIDTH, activation="relu") for _ in range(4)]
    model = keras.Sequential([keras.Input((WIDTH,)), *layers, keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse")
    data = numpy.random.default_rng(1).normal(size=(EPOCH * given.batch_size, WIDTH))
    epochs = -(-given.steps // EPOCH)
    model.fit(data, data[:, :1], given.batch_size, epochs, callbacks=callbacks)


if __name__ == "__main__":
    main()
