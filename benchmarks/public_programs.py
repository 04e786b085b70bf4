"""Public programs, unchanged, under a sweep: our figure beside stamps of the same iterations.

``python benchmarks/public_programs.py --sources DIR --python PYTHON [--only NAME ...] [--slurm]``.
DIR has checkouts of the repositories that :data:`PROGRAMS` names, each in a directory
``owner+name``; PYTHON has the packages of the programs. Data and models are made here, small and of
noise, and nothing is loaded from outside. ``--slurm`` wants a Slurm of one machine around it
(``python3 slurm/onebox run -- python benchmarks/public_programs.py --slurm ...``); two ranks are
then two nodes. A ready program runs twice in one directory, as its users do.

The truth is what ``stamps/`` writes beside a program: the moments in which its iterations ended.
The two figures are of the same run and of the same iterations, so that only their ratio counts on
a machine that does something else as well.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomllib

from programs import ROOT, toml_of

STAMPS = ROOT / "benchmarks" / "stamps"
SWEEP = """
topologies = {topologies}
base = "{base}"
repeats = {repeats}
time_limit = "00:09:00"
[measure]
warmup = {warmup}
iterations = {iterations}
[case]
framework = "{name}"
model = "toy"
device = "cpu"
environment = "programs"
{case}
"""
MNIST_LINE = r"^Train Epoch: (?P<epoch>[0-9]+) \[.*Loss: (?P<loss>\S+)"
MNIST = {"line": MNIST_LINE, "first": 0}


@dataclass(frozen=True)
class Program:
    """A program: its own table, or the name of the ready one with ``more`` words; the batch of a
    rank, on how many ranks, the window, what the case has besides, and where it runs.

    ``{S}`` stands for the directory of the sources, ``{D}`` for that of the data.
    """

    name: str
    table: Mapping[str, Any] | str
    batch: int
    ranks: tuple[int, ...] = (1, 2)
    warmup: int = 5
    iterations: int = 30
    case: Mapping[str, Any] = field(default_factory=dict)
    more: tuple[str, ...] = ()
    workdir: str = ""

    @property
    def repeats(self) -> int:
        """A ready program runs twice: a first run may leave something in the way of the second."""
        return 1 + isinstance(self.table, str)

    def told(self) -> dict[str, Any]:
        """Its table."""
        table = self.table
        if isinstance(table, str):
            table = tomllib.loads((ROOT / "programs" / f"{table}.toml").read_text())
        made = {**table, "run": [*table["run"], *self.more]}
        if self.workdir:
            made["workdir"] = self.workdir
        return made


PROGRAMS = (
    Program(
        "timm",
        "timm",
        4,
        case={"images": "{D}/images", "network": "resnet18", "log_interval": 1},
        more=("--num-classes", "2", "--img-size", "96", "--workers", "1"),
        workdir="{S}/huggingface+pytorch-image-models",
    ),
    Program(
        "imagenet",
        {
            "launch": "rank",
            "run": [
                *("{S}/pytorch+examples/imagenet/main.py", "--dummy", "-a", "resnet18"),
                *("-b", "{batch_size}", "-p", "1", "-j", "0", "--epochs", "1"),
                *("--dist-url", "env://", "--dist-backend", "gloo", "--world-size", "-1"),
            ],
        },
        2,
    ),
    Program(
        "diffusers",
        "diffusers",
        4,
        case={"images": "{D}/images/train", "resolution": 32},
        more=("--model_config_name_or_path", "{D}/unet", "--save_images_epochs", "99"),
        workdir="{S}/huggingface+diffusers/examples/unconditional_image_generation",
    ),
    Program(
        "trl_sft",
        "trl_sft",
        4,
        case={"weights": "{D}/llama", "dataset": "{D}/texts", "seq_len": 128},
        more=("--gradient_checkpointing", "False"),
    ),
    Program(
        "trl_dpo",
        {
            "launch": "torchrun",
            "run": [
                *("-m", "trl.scripts.dpo", "--model_name_or_path", "{D}/llama"),
                *("--dataset_name", "{D}/pairs", "--output_dir", "{scratch}", "--use_cpu"),
                *("--max_steps", "{steps}", "--per_device_train_batch_size", "{batch_size}"),
                *("--logging_steps", "1", "--report_to", "none", "--save_strategy", "no"),
                *("--bf16", "False", "--gradient_checkpointing", "False"),
            ],
        },
        2,
    ),
    Program(
        "accelerate_nlp",
        {
            "launch": "accelerate",
            "workdir": "{D}",
            "run": [
                *("-m", "dlperf_hpc.hook", "--batch-size", "{batch_size}"),
                *("{S}/huggingface+accelerate/examples/nlp_example.py", "--cpu"),
            ],
        },
        16,
    ),
    Program(
        "fabric_mnist",
        {
            "launch": "torchrun",
            "run": [  # all processes print
                *("--local-ranks-filter", "0", "--role", "rank", "--tee", "3"),
                "{D}/lightning/examples/fabric/image_classifier/train_fabric.py",
                *("--batch-size", "{batch_size}", "--log-interval", "1", "--epochs", "2"),
            ],
            "env": {  # as `fabric run` does
                "LT_CLI_USED": "1",
                "LT_ACCELERATOR": "cpu",
                "LT_STRATEGY": "ddp",
                "LT_DEVICES": "{gpus_per_node}",
                "LT_NUM_NODES": "{nodes}",
            },
            "read": {**MNIST, "each": 1},
        },
        64,
    ),
    Program(
        "litgpt",
        {
            "launch": "rank",
            "run": [
                *("-m", "litgpt", "pretrain", "pythia-14m"),
                *("--tokenizer_dir", "{D}/pythia", "--data", "TextFiles"),
                *("--data.train_data_path", "{D}/txt", "--data.num_workers", "0"),
                *("--train.micro_batch_size", "{batch_size}", "--train.global_batch_size"),
                *("{global_batch}", "--train.max_tokens", "10000000", "--train.log_interval", "1"),
                *("--train.max_seq_length", "{seq_len}", "--train.lr_warmup_steps", "5"),
                *("--devices", "{gpus_per_node}", "--num_nodes", "{nodes}"),
                *("--out_dir", "{scratch}", "--precision", "32-true"),
            ],
            "env": {"TORCHDYNAMO_DISABLE": "1"},
        },
        4,
        (1,),  # two want FSDP, which processors do not have
        case={"seq_len": 64},
    ),
    Program(
        "comd",
        {
            "launch": "rank",
            "run": [
                *("stdbuf", "-oL", "{D}/bin/CoMD-mpi", "-i", "{ranks}", "-N", "{steps}", "-n", "1"),
                *("-x", "20", "-y", "20", "-z", "20"),
            ],
            "read": {"line": r"^ +(?P<iteration>[0-9]+) +[0-9.]+( +-?[0-9.]+){5} +[0-9]+$"},
        },
        1,
    ),
    Program(
        "mingpt",
        {
            "launch": "rank",
            "workdir": "{D}",
            "run": [
                *("{S}/karpathy+minGPT/projects/chargpt/chargpt.py", "--trainer.num_workers=0"),
                *("--trainer.batch_size={batch_size}", "--model.model_type=gpt-nano"),
                *("--trainer.max_iters={steps}", "--system.work_dir='{scratch}'"),
            ],
            "env": {"PYTHONPATH": "{P}:{S}/karpathy+minGPT"},
            "read": {
                "line": r"^iter_dt (?P<printed>[0-9.]+)ms; iter (?P<iteration>[0-9]+): "
                r"train loss (?P<loss>\S+)",
                "printed": {"unit": "ms/iteration", "averaging": "last-iteration"},
                "first": 0,
            },
        },
        16,
        (1,),
    ),
    Program(
        "keras_mnist",
        {
            "launch": "node",
            "run": ["{S}/keras-team+keras/examples/demo_mnist_convnet.py"],
            "env": {"KERAS_HOME": "{D}/keras"},
            "read": {"format": "keras"},
        },
        128,
        (1,),
        warmup=180,  # the second epoch too: its validation is compiled in the first
        iterations=90,
    ),
    Program(
        "mnist",
        {
            "launch": "rank",
            "workdir": "{D}/mnist",
            "run": [
                *("{S}/pytorch+examples/mnist/main.py", "--batch-size", "{batch_size}"),
                *("--log-interval", "10"),
            ],
            "read": {**MNIST, "each": 10},
        },
        64,
        (1,),
    ),
    Program(
        "vae",
        {
            "launch": "rank",
            "workdir": "{D}/vae",
            "run": [
                *("{S}/pytorch+examples/vae/main.py", "--batch-size", "{batch_size}"),
                *("--log-interval", "10"),
            ],
            "read": {**MNIST, "each": 10},
        },
        128,
        (1,),
    ),
    Program(
        "dcgan",
        {
            "launch": "rank",
            "run": [
                *("{S}/pytorch+examples/dcgan/main.py", "--dataset", "fake", "--niter", "1"),
                *("--batchSize", "{batch_size}", "--workers", "0", "--outf", "{scratch}"),
                *("--ngf", "16", "--ndf", "16"),
            ],
            "read": {
                "line": r"^\[[0-9]+/[0-9]+\]\[(?P<iteration>[0-9]+)/[0-9]+\] Loss_D: (?P<loss>\S+)",
                "first": 0,
            },
        },
        8,
        (1,),
    ),
)


def words_of_noise(dice: random.Random, number: int) -> str:
    """So many words, of 2000 different ones."""
    made = ["".join(dice.choices("abcdefghijklmnopqrstuvwxyz", k=5)) for _ in range(2000)]
    return " ".join(dice.choices(made, k=number))


def make_images(data: Path, dice: random.Random) -> None:
    """``images``: 1200 PNGs of two classes; MNIST's files for torchvision and for Keras."""
    import numpy
    from PIL import Image

    noise = numpy.random.default_rng(dice.randrange(1000))
    for split, number in (("train", 600), ("validation", 8)):
        for name in ("one", "two"):
            place = data / "images" / split / name
            place.mkdir(parents=True)
            for index in range(number):
                pixels = noise.integers(0, 256, (96, 96, 3), dtype="uint8")
                Image.fromarray(pixels).save(place / f"{index}.png")
    digits, kinds = noise.integers(0, 256, (12800, 28, 28), "uint8"), noise.integers(0, 10, 12800)
    (data / "keras" / "datasets").mkdir(parents=True)
    numpy.savez(
        data / "keras" / "datasets" / "mnist.npz",
        x_train=digits, y_train=kinds, x_test=digits[:128], y_test=kinds[:128],
    )  # fmt: skip
    for name in ("data", "lightning/Datasets"):
        raw = data / name / "MNIST" / "raw"
        raw.mkdir(parents=True)
        for part, number in (("train", 12800), ("t10k", 128)):
            head = struct.pack(">4i", 2051, number, 28, 28)
            write_twice(raw / f"{part}-images-idx3-ubyte", head + digits[:number].tobytes())
            head = struct.pack(">2i", 2049, number)
            labels = kinds[:number].astype("uint8").tobytes()
            write_twice(raw / f"{part}-labels-idx1-ubyte", head + labels)


def write_twice(path: Path, content: bytes) -> None:
    """A file, and its ``.gz`` beside it."""
    path.write_bytes(content)
    path.with_name(path.name + ".gz").write_bytes(gzip.compress(content, 1))


def make_texts(data: Path, dice: random.Random) -> None:
    """Texts in the forms that the programs want."""
    (data / "input.txt").write_text("O God, O God!\n" + words_of_noise(dice, 50_000))
    (data / "txt").mkdir()
    for index in range(4):
        (data / "txt" / f"{index}.txt").write_text(words_of_noise(dice, 100_000))
    rows = [{"text": words_of_noise(dice, 60)} for _ in range(1000)]
    (data / "texts").mkdir()
    (data / "texts" / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    names = ("prompt", "chosen", "rejected")
    rows = [{name: words_of_noise(dice, 20) for name in names} for _ in range(500)]
    (data / "pairs").mkdir()
    (data / "pairs" / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    glue = data / "nyu-mll" / "glue" / "mrpc"
    glue.mkdir(parents=True)
    for split, number in (("train", 2000), ("validation", 32)):
        pairs = [
            {"sentence1": words_of_noise(dice, 20), "sentence2": words_of_noise(dice, 20),
             "label": dice.randrange(2), "idx": index}
            for index in range(number)
        ]  # fmt: skip
        (glue / f"{split}.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    files = "".join(
        f"  - split: {split}\n    path: mrpc/{split}.jsonl\n" for split in ("train", "validation")
    )
    card = f"---\nconfigs:\n- config_name: mrpc\n  data_files:\n{files}---\n"
    (glue.parent / "README.md").write_text(card)


METRIC = """
import datasets
import evaluate
class Glue(evaluate.Metric):
    def _info(self):
        kind = datasets.Value("int64")
        return evaluate.MetricInfo(description="", citation="", inputs_description="",
            features=datasets.Features({"predictions": kind, "references": kind}))
    def _compute(self, predictions, references):
        return {"accuracy": sum(p == r for p, r in zip(predictions, references)) / len(references)}
"""
MODELS = """
import json, sys
from pathlib import Path
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import (BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM,
                          PreTrainedTokenizerFast)
data = Path(sys.argv[1])
text = (data / "input.txt").read_text()
special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "<|endoftext|>"]
tokens = Tokenizer(models.BPE(unk_token="[UNK]"))
tokens.pre_tokenizer = pre_tokenizers.Whitespace()
tokens.train_from_iterator([text], trainers.BpeTrainer(vocab_size=2000, special_tokens=special))
made = PreTrainedTokenizerFast(tokenizer_object=tokens, unk_token="[UNK]", cls_token="[CLS]",
    sep_token="[SEP]", pad_token="[PAD]", eos_token="<|endoftext|>",
    bos_token="<|endoftext|>", model_max_length=512)
bert = BertConfig(vocab_size=2000, hidden_size=256, num_hidden_layers=2, num_attention_heads=4,
                  intermediate_size=512)
llama = LlamaConfig(vocab_size=2000, hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
                    intermediate_size=512, max_position_embeddings=512)
for name, model in (("bert-base-cased", BertForSequenceClassification(bert)),
                    ("llama", LlamaForCausalLM(llama))):
    model.save_pretrained(data / name)
    made.save_pretrained(data / name)
made.save_pretrained(data / "pythia")
unet = {"_class_name": "UNet2DModel", "sample_size": 32, "in_channels": 3, "out_channels": 3,
        "layers_per_block": 1, "block_out_channels": [32, 64], "norm_num_groups": 8,
        "down_block_types": ["DownBlock2D", "AttnDownBlock2D"],
        "up_block_types": ["AttnUpBlock2D", "UpBlock2D"]}
(data / "unet").mkdir()
(data / "unet" / "config.json").write_text(json.dumps(unet))
"""


def make_data(data: Path, sources: Path, python: Path) -> None:
    """All that the programs read, and CoMD."""
    dice = random.Random(1)
    data.mkdir(parents=True)
    make_images(data, dice)
    make_texts(data, dice)
    for name in ("mnist", "vae/results", "glue"):
        (data / name).mkdir(parents=True)
    (data / "glue" / "glue.py").write_text(METRIC)
    subprocess.run([python, "-c", MODELS, str(data)], check=True)
    fabric = "examples/fabric/image_classifier/train_fabric.py"
    (data / "lightning" / fabric).parent.mkdir(parents=True)
    shutil.copy(sources / "Lightning-AI+pytorch-lightning" / fabric, data / "lightning" / fabric)
    source = data / "src-mpi"
    shutil.copytree(sources / "ECP-copa+CoMD" / "src-mpi", source)
    shutil.copytree(sources / "ECP-copa+CoMD" / "pots", data / "pots")
    shutil.copy(source / "Makefile.vanilla", source / "Makefile")
    mpicc = str(Path(sys.executable).with_name("mpicc"))
    stamps = data / "timestep.o"
    argv = [mpicc, "-O2", "-c", str(STAMPS / "timestep.c"), "-o", str(stamps)]
    subprocess.run(argv, check=True)
    (source / ".depend").touch()
    linked = f"OTHER_LIB=-Wl,--wrap=timestep {stamps} -lm"
    subprocess.run(["make", "-s", f"CC={mpicc}", linked], cwd=source, check=True)


def put(value: Any, words: Mapping[str, str]) -> Any:
    """A table with ``{S}`` and the like replaced."""
    if isinstance(value, Mapping):
        return {key: put(each, words) for key, each in value.items()}
    if isinstance(value, list):
        return [put(each, words) for each in value]
    if isinstance(value, str):
        for name, text in words.items():
            value = value.replace(f"{{{name}}}", text)
    return value


def swept(place: Path, program: Program, given: argparse.Namespace) -> Path:
    """Run the sweep of a program; its directory."""
    words = {"S": str(given.sources), "D": str(given.data), "P": f"{STAMPS}:{ROOT}"}
    table = put(program.told(), words)
    table["env"] = {"STAMPS": "{outdir}", "HF_HUB_OFFLINE": "1", **table.get("env", {})}
    (place / "programs").mkdir(parents=True)
    (place / "programs" / f"{program.name}.toml").write_text(toml_of(table, ""))
    env = {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": words["P"], "UCX_TLS": "tcp,self",
           "KERAS_BACKEND": "jax", "HF_DATASETS_CACHE": str(given.data / "cache"),
           "OMP_NUM_THREADS": "1"}  # fmt: skip
    here: dict[str, Any] = {"python": str(given.python), "env": env}
    site = ""
    if given.slurm:
        site, here["mpi"] = (ROOT / "slurm" / "onebox.toml").read_text(), "pmi2"
    (place / "here.toml").write_text(site + toml_of({"environment": {"programs": here}}, ""))
    topologies = [f"{n}n1g" if given.slurm else f"1n{n}g" for n in program.ranks]
    case = {"batch_size": program.batch, **put(program.case, words)}
    (place / "public.toml").write_text(
        SWEEP.format(
            topologies=json.dumps(topologies), base=topologies[0], warmup=program.warmup,
            repeats=program.repeats,
            iterations=program.iterations, name=program.name,
            case="\n".join(f"{key} = {json.dumps(value)}" for key, value in case.items()),
        )
    )  # fmt: skip
    verb = [sys.executable, "-m", "dlperf_hpc", "sweep", "public.toml"]
    where = ["--cluster", "slurm", "--wait"] if given.slurm else ["--cluster", "local"]
    subprocess.run(
        [*verb, *where, "--site", str(place / "here.toml")],
        cwd=place, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
        stdout=(place / "output").open("wb"), stderr=subprocess.STDOUT,
    )  # fmt: skip
    return place / "logs" / "public"


def stamped(root: Path, row: Mapping[str, str]) -> list[float]:
    """Samples/s by the stamps of rank 0 in the iterations of a row, times the ranks."""
    first, last = int(row["first_iteration"] or 0), int(row["last_iteration"] or 0)
    if not last:  # a Timer's window
        first = int(row["warmup"] or 0)
        last = first + int(row["iterations"] or 0)
    found = []
    place, _, name = row["run"].rpartition("/")
    for path in root.glob(f"{place}/attempts/{name}.*/**/0.*.stamps"):
        moments = [int(line) / 1e9 for line in path.read_text().split()]
        if len(moments) >= last > first:
            seconds = moments[last - 1] - moments[first - 1]
            samples = float(row["batch_size"]) * int(row["devices"]) * (last - first)
            found.append(samples / seconds)
    return found


def row_of(root: Path, row: Mapping[str, str], where: str) -> dict[str, Any]:
    """What is printed of a run."""
    truth = stamped(root, row)
    ours = float(row["samples_per_s"] or 0)
    slowest = min(truth, default=0.0)
    return {
        "program": row["framework"], "where": where, "topology": row["topology"],
        "status": row["status"], "rule": row["rule"], "ours": ours, "stamps": slowest,
        "ratio": ours / slowest if slowest else 0.0,
        "check": row.get("check_samples_per_s", ""), "flags": row.get("flags", ""),
        "reason": row["reason"],
    }  # fmt: skip


def shown(row: Mapping[str, Any]) -> str:
    """A row of the table."""
    if row["status"] != "ok" or not row["ours"]:
        figures = f"{row['status']}: {row['reason']}"
    else:
        figures = f"{row['ours']:.2f} | {row['stamps']:.2f} | {row['ratio']:.4f}"
    return f"| {row['program']} | {row['topology']} | {row['where']} | {row['rule']} | {figures} |"


def main() -> int:
    """Print a row for each run; 1 if one has no figure, or differs from its stamps by over 1 %."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--sources", type=Path, required=True)
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--data", type=Path, help="made there, or taken from there (temporary)")
    parser.add_argument("--place", type=Path, help="where the sweeps are kept (temporary)")
    parser.add_argument("--only", nargs="*", default=[], help="names of programs")
    parser.add_argument("--slurm", action="store_true")
    given = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        given.data = given.data or Path(folder) / "data"
        given.place = given.place or Path(folder)
        if not given.data.exists():
            make_data(given.data, given.sources, given.python)
        where = "Slurm" if given.slurm else "local"
        for program in PROGRAMS:
            if given.only and program.name not in given.only:
                continue
            root = swept(given.place / program.name, program, given)
            rows = read_rows(root)
            for row in rows:
                made = row_of(root, row, where)
                wrong += not 0.99 <= made["ratio"] <= 1.01
                print(shown(made), flush=True)
            wrong += len(rows) != len(program.ranks) * program.repeats
    return 1 if wrong else 0


def read_rows(root: Path) -> list[dict[str, str]]:
    path = root / "report" / "runs.csv"
    if not path.exists():
        return []
    with open(path, encoding="utf-8") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    sys.exit(main())
