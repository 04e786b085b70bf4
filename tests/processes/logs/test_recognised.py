"""Programs whose speed is not read are told by their lines, and nothing else is taken for one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from external_corpus import corpus, samples
from external_logs import deepspeed
from places import ROOT

from dlperf_hpc.cli.extract import main as extract
from dlperf_hpc.cli.report import main as report
from dlperf_hpc.logs.formats import formats
from dlperf_hpc.logs.scan.scanner import scanner
from dlperf_hpc.logs.scan.search import HEAD_BYTES, programs, programs_in, scan_source
from dlperf_hpc.logs.scan.sources import Source, find

# ruff: noqa: E501 - a log's line is as long as it is

LINES = {
    "fairseq before 2020": "| epoch 001:   1500 / 20368 loss=8.2, nll_loss=7.1, ppl=132.5, wps=24000, ups=5, wpb=3500.000, bsz=120.000",
    "Chainer (ESPnet 1)": "   0.62500 iters/sec. Estimated time to finish: 1 day, 5:12:30.250000.",
    "OpenNMT-tf": "INFO:tensorflow:Step = 100 ; steps/s = 1.25, source words/s = 41000, target words/s = 39000 ; Learning rate = 0.000012 ; Loss = 9.5",
    "Tensor2Tensor": "INFO:tensorflow:datashard_devices: ['gpu:0', 'gpu:1']",
    "Marian": "[2019-03-04 05:06:07] Ep. 2 : Up. 1500 : Sen. 69,755 : Cost 6.95 : Time 685.53s : 16289.59 words/s",
    "Sockeye": "[INFO:sockeye.training] Training started.",
    "Kaldi": "LOG (nnet3-chain-train[5.5.9~1-34cc]:PrintTotalStats():nnet-training.cc:348) Overall average objective",
    "SpeechBrain": "speechbrain.core - Beginning experiment!",
    "Coqui TTS": "   --> STEP: 16/25 -- GLOBAL_STEP: 1375",
    "AllenNLP": "2019-03-04 05:06:07,697 - INFO - allennlp.training.trainer - Epoch 1/39",
    "spaCy": "E    #       LOSS TOK2VEC  LOSS NER  ENTS_F  ENTS_P  ENTS_R  SCORE",
    "fms-fsdp": "current token per gpu per sec: 3900",
    "icefall (batches of varying size, and no speed)": "2023-05-12 18:05:00,352 INFO [train.py:422] Epoch 0, batch 10, loss[loss=0.4561, over 2828.00 frames. ], tot_loss[loss=0.7076, over 22192.90 frames. ], batch size: 4",
    "Colossal-AI": "[03/04/23 05:06:07] INFO     colossalai - colossalai - INFO: /opt/colossalai/initialize.py:69 launch",
    "DeepSpeed-Chat": "Model Parameters: 1.388 B, Latency: 3.08s, TFLOPs: 19.34, Samples/sec: 9.68, Time/seq 0.10s, Batch Size: 32",
    "YOLOv5's classification (an epoch's bar has its validation's time in it)": "classify/train: model=yolov5s-cls.pt, data=imagenette160, epochs=5, batch_size=64, imgsz=224",
    "YOLOv6": "Inferencing model in val datasets.: 100% 1/1 [00:01<00:00,  1.38s/it]",
    "MiniMind (only the minutes that remain)": "Epoch:[1/1](50/56608), loss: 2.4945, logits_loss: 2.4945, aux_loss: 0.0000, lr: 0.00001000, epoch_time: 116.0min",
    "deep-text-recognition-benchmark or EasyOCR's trainer (validation in its times)": "Current_accuracy : 60.039, Current_norm_ED  : 0.8185",
    "PaddleOCR": "[2022/03/04 05:06:07] ppocr INFO: epoch: [1/400], global_step: 40, lr: 0.0001, ips: 15.3 samples/s",
    "PyTorch's MNIST example or its kin": "Train Epoch: 1 [1280/60000 (2%)]\tLoss: 1.958980",
    "Darknet": "1250: 3.125000, 3.250125 avg, 0.001000 rate, 9.500250 seconds, 80000 images",
    "PySlowFast or Detectron": 'json_stats: {"_type": "train_iter", "epoch": "1/100", "dt": 0.5}',
    "fastai": "epoch     train_loss  valid_loss  accuracy  time",
    "Caffe": "I0203 22:10:39.182849  3769 solver.cpp:228] Iteration 20, loss = 1.16601",
    "CNTK": "Finished Epoch[ 2 of 10]: [Training] ce = 1.26950797 * 50000; errs = 45.228% * 50000",
    "TensorFlow 1's Estimator": "INFO:tensorflow:global_step/sec: 9.74722",
    "DLRM": "Finished training it 2048/306969 of epoch 0, 11.81 ms/it, loss 0.508778",
    "MLPerf logging of 2018 and 2019": ":::MLPv0.5.0 resnet 1541710429.123456 (train.py:123) global_batch_size: 4096",
    "Stable-Baselines3": "| rollout/           |          |",
    "LightGBM": "[LightGBM] [Info] Total Bins 1250",
    "vLLM": "INFO 03-04 05:06:07 metrics.py:229] Avg prompt throughput: 12.5 tokens/s, Avg generation throughput: 1.5 tokens/s",
    "SGLang": "[2025-03-04 05:06:07] Decode batch. #running-req: 3, #token: 147, gen throughput (token/s): 112.5",
    "serving benchmark of vLLM or SGLang": "============ Serving Benchmark Result ============",
    "Text Generation Inference": '2024-03-04T05:06:07.118777Z  INFO text_generation_launcher: Args { model_id: "gpt2" }',
    "TensorRT-LLM": "[TensorRT-LLM][INFO] Loaded engine size: 1578 MiB",
    "TensorRT's trtexec": "&&&& RUNNING TensorRT.trtexec [TensorRT v8600] # trtexec --onnx=a.onnx",
    "Triton's perf_analyzer": "Inferences/Second vs. Client Average Batch Latency",
    "llama.cpp": "llama_perf_context_print:        eval time =     125.00 ms /    10 runs",
    "MLPerf Inference (LoadGen)": "MLPerf Results Summary",
    "nccl-tests or rccl-tests": "# nThread 1 nGpus 8 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5",
    "nvbandwidth": "nvbandwidth Version: v0.5",
    "OSU Micro-Benchmarks": "# OSU MPI Latency Test v7.4",
    "Intel MPI Benchmarks": "#    Intel(R) MPI Benchmarks 2021.7, MPI-1 part",
    "perftest (ib_write_bw and its kin)": " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]",
    "HPL": "HPLinpack 2.3  --  High-Performance Linpack benchmark  --   December 2, 2018",
    "HPCG": "Final Summary::HPCG result is VALID with a GFLOP/s rating of=12.500125",
    "STREAM": "STREAM version $Revision: 5.10 $",
    "IOR or mdtest": "IOR-4.0.0: MPI Coordinated Test of Parallel I/O",
}


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def source(path: Path) -> Source:
    (found,) = find([path])
    assert isinstance(found, Source)
    return found


def test_each_program_is_told_by_its_line_alone() -> None:
    assert list(LINES) == [each.name for each in programs()]
    for name, line in LINES.items():
        assert programs_in(f"first\n{line}\n".encode()) == (name,), line


def test_no_line_of_a_program_is_taken_for_a_formats() -> None:
    for name, line in LINES.items():
        data = f"{line}\n".encode() * 3
        assert not scanner().scan(name, len(data), [data]).readings, line


def test_no_log_in_a_known_format_shows_a_program() -> None:
    for made in corpus():
        assert not programs_in(made.text.encode()), made.name
    for path in samples():
        assert not programs_in(path.read_bytes()), path


def test_signs_are_those_of_one_program_and_no_formats() -> None:
    signs = [sign for each in programs() for sign in each.signs]
    assert max(Counter(signs).values()) == 1
    literals = {literal for each in formats() for literal in each.literals}
    for sign in signs:
        assert len(sign) >= 6 and not any(
            literal in sign or sign in literal for literal in literals
        )


def test_no_page_or_source_of_ours_is_taken_for_a_log() -> None:
    files = [*(ROOT / "docs").glob("*.md"), *(ROOT / "dlperf_hpc").rglob("*.py")]
    told = {path.name: programs_in(path.read_bytes()) for path in files}
    assert {name: found for name, found in told.items() if found} == {}


def test_a_file_that_is_read_has_no_program_and_a_sign_is_sought_in_the_beginning_alone(
    tmp_path: Path,
) -> None:
    (sample,) = (path for path in samples() if path.stem == "maxtext")
    noise, line = b"noise\n", LINES["Marian"].encode()
    contents = {
        "read.log": (line + b"\n" + sample.read_bytes(), ""),
        "early.log": (noise * 1000 + line, "Marian"),
        "late.log": (noise * (HEAD_BYTES // len(noise) + 1) + line, ""),
        "two.log": (LINES["vLLM"].encode() + b"\n" + line, "vLLM, Marian"),
        "none.log": (noise, ""),
    }
    for name, (content, program) in contents.items():
        (tmp_path / name).write_bytes(content)
        assert scan_source(source(tmp_path / name)).program == program, name


def test_the_report_says_what_was_recognised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (sample,) = (path for path in samples() if path.stem == "maxtext")
    (logs / "a.log").write_bytes(sample.read_bytes())
    (logs / "b.log").write_text(LINES["Marian"] + "\n")
    (logs / "c.log").write_text("what is this?\n")
    for _ in range(2):  # the second time from the cache
        assert report([str(logs)]) == 0
        shown = capsys.readouterr()
        assert "1 recognised (Marian), no speed read, 1 in no known format" in shown.out
        assert "b.log: recognised: Marian, no speed read" in shown.err
        assert "no known format: 1 file (" in shown.err and "c.log" in shown.err
    told = json.loads((logs / "report" / "report.json").read_text())
    assert f"{logs}/b.log: recognised: Marian, no speed read" in told["unread"]
    assert told["foreign"] == [f"{logs}/c.log"]
    assert "recognised: Marian, no speed read" in (logs / "report" / "report.md").read_text()


def test_many_files_of_a_program_are_one_line_on_the_screen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (sample,) = (path for path in samples() if path.stem == "maxtext")
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "z.log").write_bytes(sample.read_bytes())
    for n in range(30):
        (logs / f"{n:02d}.log").write_text(LINES["vLLM"] + "\n")
    assert report([str(logs)]) == 0
    told = capsys.readouterr().err
    assert told.count("vLLM") == 1 and "z.log:" in told
    assert f"not read: {logs}/00.log and 29 other files: recognised: vLLM, no speed read" in told
    unread = json.loads((logs / "report" / "report.json").read_text())["unread"]
    assert sum("recognised: vLLM, no speed read" in line for line in unread) == 30


def test_a_log_of_nothing_but_a_program_is_told_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "b.log").write_text(LINES["vLLM"] + "\n")
    assert report([str(tmp_path / "b.log")]) == 2
    told = capsys.readouterr().err
    assert "b.log: recognised: vLLM, no speed read" in told
    assert "docs/external-logs.md" in told


def test_a_format_without_a_figure_is_told_in_the_same_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "b.log"
    log.write_text(':::MLLOG {"key": "run_start", "time_ms": 1, "metadata": {}}\n')
    assert report([str(log)]) == 2
    assert f"{log}: recognised: mlperf, no speed read" in capsys.readouterr().err
    place = ["--nodes", "1", "--gpus-per-node", "8", "--out", str(tmp_path / "out")]
    assert report([str(log), *place]) == 0
    assert f"{log}: recognised: mlperf, no speed read" in capsys.readouterr().err


def test_a_line_that_is_nearly_a_formats_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "new.log"
    log.write_text("\ncompleted step: 3, secs: 2.000, loss: 8.688\n" * 2)
    assert report([str(log)]) == 2
    near = "no known format; line 2 is nearest to maxtext: a step of MaxText's, but not as it"
    assert f"{log}: {near}" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "code"), [("nccl.txt", 0), ("other.log", 1)])
def test_extract_counts_a_program_as_left_out_only_if_its_file_is_a_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, code: int
) -> None:
    logs = tmp_path / "logs"
    (logs / "1n1g").mkdir(parents=True)
    (logs / "1n1g" / "bert_b32_fp32_1.log").write_text(deepspeed(320.0))
    (logs / name).write_text(LINES["nccl-tests or rccl-tests"] + "\n")
    assert extract(["--log_dir", str(logs), "--output_dir", str(tmp_path / "out")]) == code
    assert "recognised: nccl-tests or rccl-tests, no speed read" in capsys.readouterr().err


def test_formats_lists_the_programs_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(["--formats"]) == 0
    shown = capsys.readouterr().out
    assert all(each.name in shown for each in programs())


# --- docs/external-logs.md

SECTION = "## What to do when a log is not read\n"
PAGE = (ROOT / "docs" / "external-logs.md").read_text(encoding="utf-8").partition(SECTION)[2]
STEP = "completed step: {}, seconds: {:.3f}, TFLOP/s: 35.375, loss: {:.3f}\n"


def commands() -> list[tuple[str, list[str]]]:
    """The page's commands, and the lines that they are said to print."""
    found: list[tuple[str, list[str]]] = []
    for line in re.findall(r"^    (.*)$", PAGE, re.MULTILINE):
        if line.startswith("$ "):
            found.append((line.removeprefix("$ "), []))
        elif found:
            found[-1][1].append(line)
    return found


def test_the_commands_of_the_page_print_what_it_says(tmp_path: Path) -> None:
    lines = [STEP.format(n, 2 if n else 30, 9 - n / 64) for n in range(130)]
    assert f"    {lines[20]}" in PAGE
    (tmp_path / "train.log").write_text("".join(lines))
    sample, table = re.findall(r"^```(?:text|toml)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    (tmp_path / "custom.toml").write_text(table)
    custom = (sample.replace("step 20", f"step {n}") for n in range(1, 131))
    (tmp_path / "custom.log").write_text("".join(custom))
    (tmp_path / "other.log").write_text(LINES["Marian"] + "\n")
    shims = tmp_path / "bin"
    shims.mkdir()
    for name, module in (("dlperf", "-m dlperf_hpc"), ("python", "")):
        (shims / name).write_text(f'#!/bin/sh\nexec {sys.executable} {module} "$@"\n')
        (shims / name).chmod(0o755)
    env = {**os.environ, "PATH": f"{shims}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    assert len(commands()) >= 15
    for command, said in commands():
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env=env, text=True, capture_output=True
        )
        printed = [re.sub(" +", " ", line) for line in (done.stdout + done.stderr).splitlines()]
        for line in said:
            expected = re.sub(" +", " ", line)
            assert any(expected in each for each in printed), f"{command}\n{printed}"
        assert done.returncode == 0 or "not read" in done.stderr, done.stderr


def test_the_page_takes_secrets_out_and_leaves_figures(tmp_path: Path) -> None:
    line = "[2022/06/02 16:17:31] epoch 1 | 12.50 it/s | bf16 | lr 1.0e-05 at step 10/100"
    secret = (
        "WANDB_API_KEY=abc123def python /home/ann/p-1/train.py --data=/scratch/x_y/set.bin\n"
        "'hf_token': 'hf_abcdef', peer 10.24.3.117:29500\n"
    )
    (tmp_path / "excerpt.txt").write_text(f"{secret}{line}\n")
    for command, _ in commands():
        if command.startswith("sed "):
            subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True)
    left = (tmp_path / "excerpt.txt").read_text()
    assert left.splitlines()[-1] == line
    for word in ("abc123def", "ann", "x_y", "hf_abcdef", "10.24.3.117"):
        assert word not in left, left


def test_the_section_is_linked() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "external-logs.md#what-to-do-when-a-log-is-not-read" in readme and PAGE
