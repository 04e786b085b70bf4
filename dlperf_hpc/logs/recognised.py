"""Programs that are told by what they print, and of which no speed is read.

A log in which no format of :mod:`dlperf_hpc.logs.formats` is recognised may still show who wrote
it. The user is then told so in place of "in no known format": nothing is wrong with the file, and
it need not be looked at again. Nothing else is taken from such a file.

Each sign is a string that stands in lines as the program prints them, and in no sentence or source
file about it. Signs are sought in the beginning of a file alone, after the file was scanned and
only if nothing was recognised in it, so that they cost the logs that are read nothing.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from ahocorasick_rs import BytesAhoCorasick

from dlperf_hpc.logs.scanned import Evidence

HEAD_BYTES = 1 << 20
"""Where signs are sought: as far as settings are at most."""


class Program(NamedTuple):
    """A program, what it is, strings of its lines, and where such lines are to be seen."""

    name: str
    kind: str
    signs: tuple[str, ...]
    source: str
    evidence: Evidence = Evidence.QUOTED


TRAINS, _SERVES, _MEASURES = "training", "inference", "benchmark"

PROGRAMS: tuple[Program, ...] = (
    # --- training: language, translation, speech
    Program(
        "fairseq",
        TRAINS,
        (" | INFO | train_inner | ", " | INFO | fairseq_cli.train | ", ", wpb="),
        "facebookresearch/fairseq fairseq/logging/progress_bar.py; its issues 301, 2338",
    ),
    Program(
        "ESPnet",
        TRAINS,
        ("epoch:train:",),
        "espnet/espnet espnet2/train/trainer.py; its issues 2183, 2674",
    ),
    Program(
        "Chainer (ESPnet 1)",
        TRAINS,
        (" iters/sec. Estimated time to finish: ",),
        "chainer/chainer chainer/training/extensions/progress_bar.py; espnet/espnet pull 1717",
    ),
    Program(
        "OpenNMT-py",
        TRAINS,
        ("; xent: ",),
        "OpenNMT/OpenNMT-py onmt/utils/statistics.py; its issues 1362, 1663",
    ),
    Program(
        "OpenNMT-tf",
        TRAINS,
        (", source words/s = ",),
        "OpenNMT/OpenNMT-tf opennmt/training.py",
    ),
    Program(
        "Tensor2Tensor",
        TRAINS,
        ("INFO:tensorflow:datashard_devices: ",),
        "tensorflow/tensor2tensor tensor2tensor/utils/devices.py; its issue 17",
    ),
    Program(
        "Marian",
        TRAINS,
        (" : Up. ",),
        "marian-nmt/marian-dev src/training/scheduler.h",
    ),
    Program(
        "Sockeye",
        TRAINS,
        ("[INFO:sockeye.",),
        "awslabs/sockeye docs/tutorials/seqcopy.md",
    ),
    Program(
        "Kaldi",
        TRAINS,
        ("LOG (nnet3-",),
        "kaldi-asr/kaldi src/nnet3/nnet-training.cc",
    ),
    Program(
        "SpeechBrain",
        TRAINS,
        ("speechbrain.core - ",),
        "speechbrain/speechbrain speechbrain/core.py",
    ),
    Program(
        "Coqui TTS",
        TRAINS,
        (" -- GLOBAL_STEP: ",),
        "coqui-ai/TTS docs/source/tutorial_for_nervous_beginners.md",
    ),
    Program(
        "AllenNLP",
        TRAINS,
        ("allennlp.training.trainer - ", "allennlp.training.gradient_descent_trainer - "),
        "allenai/allennlp allennlp/training/gradient_descent_trainer.py",
    ),
    Program(
        "Flair",
        TRAINS,
        (" - samples/sec: ",),
        "flairNLP/flair flair/trainers/trainer.py",
    ),
    Program(
        "spaCy",
        TRAINS,
        ("E    #       LOSS ",),
        "explosion/spaCy spacy/training/loggers.py",
    ),
    Program(
        "Composer (LLM Foundry)",
        TRAINS,
        (" Train throughput/", " Train trainer/"),
        "mosaicml/composer composer/loggers/console_logger.py",
    ),
    Program(
        "OLMo",
        TRAINS,
        ("throughput/device/tokens_per_second=",),
        "allenai/OLMo olmo/train.py",
    ),
    Program(
        "Levanter",
        TRAINS,
        ("Progress on:train ",),
        "stanford-crfm/levanter src/levanter/callbacks/_core.py",
    ),
    Program(
        "MindFormers",
        TRAINS,
        ("mindformers/core/callback/callback.py:",),
        "mindspore-lab/mindformers mindformers/core/callback/callback.py",
    ),
    Program(
        "InternEvo",
        TRAINS,
        ("tgs (tokens/gpu/second)=",),
        "InternLM/InternEvo internlm/train/pipeline.py; doc/en/usage.md",
    ),
    Program(
        "Colossal-AI",
        TRAINS,
        ("colossalai - colossalai - INFO: ",),
        "hpcaitech/ColossalAI colossalai/logging/logger.py",
    ),
    Program(
        "DeepSpeed-Chat",
        TRAINS,
        ("|E2E latency=", ", Time/seq "),
        "deepspeedai/DeepSpeed deepspeed/runtime/hybrid_engine.py; deepspeedai/DeepSpeedExamples"
        " applications/DeepSpeed-Chat/dschat/utils/perf.py",
    ),
    Program(
        "verl",
        TRAINS,
        (" - perf/throughput:",),
        "volcengine/verl verl/utils/tracking.py, verl/trainer/ppo/metric_utils.py",
    ),
    Program(
        "Transformer-XL or PyTorch's word_language_model",
        TRAINS,
        (" | ms/batch ",),
        "pytorch/examples word_language_model/main.py; kimiyoung/transformer-xl pytorch/train.py",
    ),
    # --- training: vision
    Program(
        "Ultralytics YOLO or YOLOv5",
        TRAINS,
        ("GPU_mem   box_loss", "gpu_mem       box       obj"),
        "ultralytics/ultralytics ultralytics/models/yolo/detect/train.py; ultralytics/yolov5 pull"
        " request 10314",
    ),
    Program(
        "Darknet",
        TRAINS,
        ("000 rate, ",),
        "pjreddie/darknet examples/detector.c",
    ),
    Program(
        "PaddleDetection",
        TRAINS,
        ("ppdet.engine INFO: Epoch: ", "ppdet.engine.callbacks INFO: "),
        "PaddlePaddle/PaddleDetection ppdet/engine/callbacks.py; its issues 3053, 6597",
    ),
    Program(
        "PaddleOCR",
        TRAINS,
        (" ppocr INFO: ",),
        "PaddlePaddle/PaddleOCR tools/program.py; its issue 13159",
    ),
    Program(
        "PaddleSeg",
        TRAINS,
        ("[INFO]\t[TRAIN] epoch: ",),
        "PaddlePaddle/PaddleSeg paddleseg/core/train.py; its pull request 928",
    ),
    Program(
        "OpenCLIP",
        TRAINS,
        (" | INFO | Train Epoch: ",),
        "mlfoundations/open_clip src/open_clip_train/train.py; its pull request 129",
    ),
    Program(
        "PyTorch's MNIST example or its kin",
        TRAINS,
        ("%)]\tLoss: ",),
        "pytorch/examples mnist/main.py",
    ),
    Program(
        "PySlowFast or Detectron",
        TRAINS,
        ("json_stats: {",),
        "facebookresearch/SlowFast slowfast/utils/logging.py; facebookresearch/Detectron",
    ),
    Program(
        "fastai",
        TRAINS,
        ("epoch     train_loss  valid_loss",),
        "fastai/fastai fastai/learner.py",
    ),
    # --- training: other
    Program(
        "Caffe",
        TRAINS,
        (" solver.cpp:",),
        "BVLC/caffe src/caffe/solver.cpp",
    ),
    Program(
        "CNTK",
        TRAINS,
        ("Finished Epoch[",),
        "microsoft/CNTK Source/SGDLib/SGD.cpp",
    ),
    Program(
        "TensorFlow 1's Estimator",
        TRAINS,
        ("INFO:tensorflow:global_step/sec: ",),
        "tensorflow/tensorflow tensorflow/python/training/basic_session_run_hooks.py",
    ),
    Program(
        "DLRM",
        TRAINS,
        ("Finished training it ",),
        "facebookresearch/dlrm dlrm_s_pytorch.py",
    ),
    Program(
        "MLPerf logging of 2018 and 2019",
        TRAINS,
        (":::MLPv0.5.0 ", ":::MLL 1"),
        "mlcommons/training compliance/mlperf_compliance/mlperf_log.py",
    ),
    Program(
        "Stable-Baselines3",
        TRAINS,
        ("| rollout/  ",),
        "DLR-RM/stable-baselines3 stable_baselines3/common/logger.py",
    ),
    Program(
        "LightGBM",
        TRAINS,
        ("[LightGBM] [Info] ",),
        "microsoft/LightGBM include/LightGBM/utils/log.h",
    ),
    # --- inference
    Program(
        "vLLM",
        _SERVES,
        ("Avg prompt throughput: ",),
        "vllm-project/vllm vllm/v1/metrics/loggers.py",
    ),
    Program(
        "SGLang",
        _SERVES,
        ("Decode batch. #running-req: ", "Decode batch, #running-req: "),
        "sgl-project/sglang python/sglang/srt/managers/scheduler_metrics_mixin.py",
    ),
    Program(
        "serving benchmark of vLLM or SGLang",
        _SERVES,
        ("============ Serving Benchmark Result ============",),
        "vllm-project/vllm vllm/benchmarks/serve.py",
    ),
    Program(
        "Text Generation Inference",
        _SERVES,
        (" text_generation_launcher: ",),
        "huggingface/text-generation-inference launcher/src/main.rs",
    ),
    Program(
        "TensorRT-LLM",
        _SERVES,
        ("[TensorRT-LLM][INFO] ",),
        "NVIDIA/TensorRT-LLM cpp/tensorrt_llm/common/logger.h",
    ),
    Program(
        "TensorRT's trtexec",
        _SERVES,
        ("&&&& RUNNING TensorRT.trtexec",),
        "NVIDIA/TensorRT samples/trtexec/trtexec.cpp",
    ),
    Program(
        "Triton's perf_analyzer",
        _SERVES,
        ("Inferences/Second vs. Client ",),
        "triton-inference-server/perf_analyzer src/inference_profiler.cc",
    ),
    Program(
        "llama.cpp",
        _SERVES,
        ("llama_perf_context_print: ", "llama_print_timings: "),
        "ggml-org/llama.cpp src/llama-context.cpp",
    ),
    Program(
        "MLPerf Inference (LoadGen)",
        _SERVES,
        ("MLPerf Results Summary\n",),
        "mlcommons/inference loadgen/results.cc",
    ),
    # --- benchmarks of machines
    Program(
        "nccl-tests or rccl-tests",
        _MEASURES,
        ("# nThread ", "# Avg bus bandwidth "),
        "NVIDIA/nccl-tests src/common.cu; its issues 82, 293",
    ),
    Program(
        "nvbandwidth",
        _MEASURES,
        ("nvbandwidth Version: ",),
        "NVIDIA/nvbandwidth nvbandwidth.cpp",
    ),
    Program(
        "OSU Micro-Benchmarks",
        _MEASURES,
        ("# OSU MPI ",),
        "the benchmarks' README (mvapich.cse.ohio-state.edu)",
    ),
    Program(
        "Intel MPI Benchmarks",
        _MEASURES,
        ("Intel(R) MPI Benchmarks 20",),
        "intel/mpi-benchmarks src_cpp/imb.cpp",
    ),
    Program(
        "perftest (ib_write_bw and its kin)",
        _MEASURES,
        ("#bytes     #iterations    BW peak[",),
        "linux-rdma/perftest src/perftest_parameters.h",
    ),
    Program(
        "HPL",
        _MEASURES,
        ("  --  High-Performance Linpack benchmark  --  ",),
        "the HPL's testing/ptest/HPL_pdinfo.c (netlib.org)",
    ),
    Program(
        "HPCG",
        _MEASURES,
        ("HPCG result is VALID with a GFLOP/s rating of",),
        "hpcg-benchmark/hpcg src/ReportResults.cpp",
    ),
    Program(
        "STREAM",
        _MEASURES,
        ("STREAM version $Revision: ",),
        "jeffhammond/STREAM stream.c",
    ),
    Program(
        "IOR or mdtest",
        _MEASURES,
        (": MPI Coordinated Test of Parallel I/O", " total task(s) on "),
        "hpc/ior src/ior-output.c, src/mdtest.c",
    ),
)


def no_speed(program: str) -> str:
    """What is said of a log whose program is known, and of which no speed is read."""
    return f"recognised: {program}, no speed read"


def programs_in(head: bytes | bytearray) -> tuple[str, ...]:
    """The names of the programs of which ``head``, a file's beginning, holds a sign; in the order
    in which their first signs stand there."""
    found = _search().find_matches_as_indexes(memoryview(head)[:HEAD_BYTES])
    owners = _owners()
    return tuple(dict.fromkeys(owners[index] for index, _, _ in found))


@functools.cache
def _owners() -> tuple[str, ...]:
    """The program of each sign."""
    return tuple(each.name for each in PROGRAMS for _ in each.signs)


@functools.cache
def _search() -> BytesAhoCorasick:
    return BytesAhoCorasick([sign.encode() for each in PROGRAMS for sign in each.signs])
