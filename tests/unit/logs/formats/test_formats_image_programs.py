"""Training programs of images whose logs lie in repositories: from their lines to a speed.

The lines are those of the repositories that each sample names, at most with parts left out. A
speed is expected by a division of what the lines print, or by their stamps.
"""

# ruff: noqa: E501 - a log's line is as long as it is

from __future__ import annotations

import re
from typing import Any

import pytest
from damage import scan
from scanned_lines import facts, read, reading, run

from dlperf_hpc.logs.interpret.interpretation import interpret
from dlperf_hpc.logs.interpret.rules import rule
from dlperf_hpc.model.result import Status

ONE: dict[str, Any] = {"nodes": 1, "gpus_per_node": 1}

# --- PaddleDetection: log/workerlog.0 of a RetinaNet with GHM, 4 cards with 2 images each

PADDLE = """\
I1209 10:37:15.207545  2536 nccl_context.cc:74] init nccl context nranks: 4 local rank: 0 gpu id: 0 ring id: 0
[12/09 10:39:33] ppdet.engine INFO: Epoch: [0] [  100/14658] learning_rate: 0.001004 loss_cls: 9.124826 loss_reg: 1.246833 loss: 10.415800 eta: 1 day, 11:56:26 batch_cost: 0.7332 data_cost: 0.0003 ips: 2.7278 images/s
[12/09 10:40:51] ppdet.engine INFO: Epoch: [0] [  200/14658] learning_rate: 0.002003 loss_cls: 4.647460 loss_reg: 1.168807 loss: 5.807567 eta: 1 day, 12:55:30 batch_cost: 0.7774 data_cost: 0.0003 ips: 2.5727 images/s
[12/09 14:13:22] ppdet.utils.checkpoint INFO: Save checkpoint: output/retinanet_ghm_coco_4GPUx2
[12/09 14:13:25] ppdet.engine INFO: Eval iter: 0""".splitlines()


def test_paddledetections_figure_is_that_of_one_card() -> None:
    """By the stamps too: 100 iterations of 8 images in 78 s."""
    assert facts(*PADDLE) == {"devices": 4}
    printed = run(PADDLE)
    assert printed.run.case.topology.devices == 4
    assert printed.samples_per_s == pytest.approx(4 * 2.5727)
    assert printed.samples_per_s == pytest.approx(8 * 100 / 78, rel=0.01)
    assert run(PADDLE, batch_size=2).samples_per_s == pytest.approx(8 * 100 / 78)


def test_paddledetections_first_card_alone_states_how_many_there_are() -> None:
    """Rings behind the first may have some of the cards only."""
    other = PADDLE[0].replace("nranks: 4", "nranks: 2").replace("ring id: 0", "ring id: 1")
    assert facts(*PADDLE[:1], other, *PADDLE[1:]) == {"devices": 4}
    (without,) = interpret(read(*PADDLE[1:]), (), (), {}, rule("default")).results or (None,)
    assert without is None, "one card's speed is none of a run whose cards are not known"


def test_paddledetections_evaluation_is_no_step() -> None:
    found = reading(*PADDLE)
    assert [(step.iteration, step.printed, step.loss) for step in found.steps] == [
        *((101, 2.7278, 10.4158), (201, 2.5727, 5.807567))
    ]
    assert [(pause.what, pause.printed) for pause in found.pauses] == [
        *(("checkpoint", False), ("evaluation", False))
    ]


# --- maskrcnn-benchmark's kin: Qiao-ops/E2EPolyAquaculture outputs/train.log

KIN = """\
2024-12-25 22:46:13,559 training INFO: eta: 0:29:06 epoch: 1 iter: 45 data: 0.0044 (0.0341) loss: 1.5206 (2.2802) loss_afm: 4.2888 (4.1966) loss_jloc: 0.0301 (0.1052) loss_joff: 0.2616 (0.2614) loss_mask: 0.3041 (0.3909) loss_remask: 0.5019 (0.5628) time: 1.2761 (1.3073) lr: 0.000100 max mem: 16036
2024-12-25 22:47:13,571 training INFO: eta: 0:28:02 epoch: 2 iter: 45 data: 0.0037 (0.0340) loss: 1.3063 (1.3834) loss_afm: 4.0606 (4.1794) loss_jloc: 0.0252 (0.0283) loss_joff: 0.2622 (0.2613) loss_mask: 0.1813 (0.2159) loss_remask: 0.4422 (0.4581) time: 1.2830 (1.3046) lr: 0.000100 max mem: 16036
2024-12-25 22:48:13,849 training INFO: eta: 0:27:10 epoch: 3 iter: 45 data: 0.0041 (0.0325) loss: 1.2703 (1.2965) loss_afm: 4.2350 (4.1581) loss_jloc: 0.0246 (0.0261) loss_joff: 0.2592 (0.2605) loss_mask: 0.1552 (0.1694) loss_remask: 0.4236 (0.4372) time: 1.2880 (1.3104) lr: 0.000100 max mem: 16036
2024-12-25 22:49:14,237 training INFO: eta: 0:26:12 epoch: 4 iter: 45 data: 0.0041 (0.0345) loss: 1.1893 (1.2142) loss_afm: 4.0645 (4.0569) loss_jloc: 0.0234 (0.0230) loss_joff: 0.2562 (0.2591) loss_mask: 0.1295 (0.1364) loss_remask: 0.4075 (0.4231) time: 1.2941 (1.3128) lr: 0.000100 max mem: 16036""".splitlines()


def test_the_kin_of_maskrcnn_benchmark_counts_and_averages_anew_in_each_epoch() -> None:
    found = reading(*KIN)
    assert [(step.iteration, step.printed, step.loss) for step in found.steps] == [
        *((46, 1.3073, 1.5206), (92, 1.3046, 1.3063)),
        *((138, 1.3104, 1.2703), (184, 1.3128, 1.1893)),
    ]
    by_clock = run(KIN, **ONE, global_batch=8)
    assert by_clock.samples_per_s == pytest.approx(8 * 138 / 180.678)
    printed = run(KIN, "printed[46:184]", **ONE, global_batch=8)
    assert printed.samples_per_s == pytest.approx(8 * 3 / (1.3046 + 1.3104 + 1.3128))


# --- HRNet: a Cityscapes training by PIDNet's function.py on one card

HRNET = """\
Epoch: [0/520] Iter:[0/247], Time: 8.32, lr: [0.0], Loss: 11.642117, Acc:0.037725, Semantic loss: 3.494898, IC loss: 8.147219
Epoch: [0/520] Iter:[20/247], Time: 0.91, lr: [0.0003333333333333333], Loss: 7.065937, Acc:0.037801, Semantic loss: 3.475865, IC loss: 3.590071
Epoch: [0/520] Iter:[110/247], Time: 0.67, lr: [0.0018333333333333333], Loss: 5.184124, Acc:0.056672, Semantic loss: 3.446398, IC loss: 1.737726
Epoch: [0/520] Iter:[120/247], Time: 0.67, lr: [0.002], Loss: 5.114212, Acc:0.062555, Semantic loss: 3.443389, IC loss: 1.670822
Epoch: [1/520] Iter:[0/247], Time: 6.56, lr: [0.004116666666666667], Loss: 3.499345, Acc:0.369086, Semantic loss: 2.857071, IC loss: 0.642275""".splitlines()
TWELVE = "  BATCH_SIZE_PER_GPU: 12"


def test_hrnets_time_is_the_mean_since_the_epoch_began() -> None:
    """121 x 0.67 s less 21 x 0.91 s is the time of 100 iterations; the loss is a mean too."""
    result = run([TWELVE, *HRNET], "printed[21:121]", **ONE)
    assert result.samples_per_s == pytest.approx(12 * 100 / (121 * 0.67 - 21 * 0.91))
    assert reading(*HRNET).steps[-1].iteration == 247 + 1


def test_a_mean_of_hrnets_with_too_few_digits_gives_no_speed() -> None:
    found = read(*[re.sub("Time: 0.[0-9]{2}", "Time: 0.07", line) for line in HRNET])
    (steps,) = (each.steps for each in found.readings)
    assert [step.printed for step in steps] == [8.32, 6.56]
    assert "too rough" in found.notes[0].text


# --- DINO: a training, its linear evaluation and its k-NN evaluation in one file

DINO = """\
batch_size_per_gpu: 64
momentum_teacher: 0.996
lr: 0.0005
world_size: 1
Epoch: [0/100]  [   0/1562]  eta: 3:32:02  loss: 10.776567 (10.776567)  lr: 0.000000 (0.000000)  wd: 0.040000 (0.040000)  time: 8.145073  data: 4.452552  max mem: 11163
Epoch: [0/100]  [  20/1562]  eta: 0:21:32  loss: 10.963536 (10.933602)  lr: 0.000000 (0.000000)  wd: 0.040000 (0.040000)  time: 0.472772  data: 0.000176  max mem: 11482
Epoch: [0/100]  [  40/1562]  eta: 0:16:43  loss: 11.012685 (10.974916)  lr: 0.000000 (0.000000)  wd: 0.040000 (0.040000)  time: 0.472018  data: 0.000192  max mem: 11482
Epoch: [0/100]  [  60/1562]  eta: 0:14:57  loss: 11.020336 (10.991272)  lr: 0.000000 (0.000000)  wd: 0.040000 (0.040000)  time: 0.470799  data: 0.000151  max mem: 11482
Epoch: [0/100]  [  80/1562]  eta: 0:13:59  loss: 11.016373 (10.998077)  lr: 0.000001 (0.000000)  wd: 0.040000 (0.040000)  time: 0.472587  data: 0.000198  max mem: 11482
Epoch: [0/100]  [ 100/1562]  eta: 0:13:22  loss: 11.013136 (11.000596)  lr: 0.000001 (0.000000)  wd: 0.040000 (0.040000)  time: 0.475163  data: 0.000183  max mem: 11482""".splitlines()
LINEAR = """\
batch_size_per_gpu: 128
checkpoint_key: teacher
world_size: 1
Epoch: [0]  [  0/782]  eta: 0:48:50  lr: 0.000500  loss: 6.958993 (6.958993)  time: 3.747051  data: 0.995960  max mem: 837
Epoch: [0]  [ 20/782]  eta: 0:04:05  lr: 0.000500  loss: 6.909647 (6.919506)  time: 0.150453  data: 0.003567  max mem: 997
Epoch: [0]  [ 40/782]  eta: 0:02:57  lr: 0.000500  loss: 6.683541 (6.792648)  time: 0.151733  data: 0.004857  max mem: 997
Epoch: [0]  [ 60/782]  eta: 0:02:31  lr: 0.000500  loss: 6.364692 (6.652573)  time: 0.152169  data: 0.005152  max mem: 997
Epoch: [0]  [ 80/782]  eta: 0:02:17  lr: 0.000500  loss: 6.060908 (6.510932)  time: 0.152027  data: 0.004852  max mem: 997
Epoch: [0]  [100/782]  eta: 0:02:07  lr: 0.000500  loss: 5.843768 (6.380325)  time: 0.152468  data: 0.005056  max mem: 997
Epoch: [0]  [120/782]  eta: 0:02:00  lr: 0.000500  loss: 5.629974 (6.257822)  time: 0.152857  data: 0.005054  max mem: 997""".splitlines()
KNN = """\
batch_size_per_gpu: 128
checkpoint_key: teacher
world_size: 1
  [  0/782]  eta: 0:53:56    time: 4.138860  data: 1.523460  max mem: 715""".splitlines()


def test_dinos_evaluations_are_no_runs() -> None:
    result = run([*DINO, *LINEAR, *KNN])
    assert result.run.case.batch_size == 64
    times = 0.472018 + 0.470799 + 0.472587 + 0.475163
    assert result.samples_per_s == pytest.approx(64 * 4 / times)
    assert not read(*LINEAR, *KNN).readings
    assert len(reading(*LINEAR, *DINO).steps) == 6, "a training behind an evaluation counts"


# --- Detectron2: a run that broke in its evaluation, and one that goes on from its checkpoint

DETECTRON = """\
[06/06 22:46:45 detectron2]: Rank of current process: 0. World size: 1
[06/06 22:49:54 d2.engine.train_loop]: Starting training from iteration 0
[06/06 22:50:20 d2.utils.events]:  eta: 6:22:05  iter: 99  total_loss: 0.9931    time: 0.2535  last_time: 0.2326  data_time: 0.0599  last_data_time: 0.0033   lr: 0.00099901  max_mem: 11155M
[06/06 22:50:47 d2.utils.events]:  eta: 6:30:32  iter: 199  total_loss: 1.167    time: 0.2575  last_time: 0.2433  data_time: 0.0672  last_data_time: 0.0038   lr: 0.001998  max_mem: 11531M
[06/06 23:01:57 d2.utils.events]:  eta: 5:59:43  iter: 2899  total_loss: 1.125    time: 0.2488  last_time: 0.1875  data_time: 0.0560  last_data_time: 0.0166   lr: 0.01  max_mem: 12773M
ERROR [06/06 23:02:43 d2.engine.train_loop]: Exception during training:
Traceback (most recent call last):
[06/06 23:02:43 d2.engine.hooks]: Total training time: 0:12:47 (0:00:21 on hooks)
[06/06 23:02:43 d2.utils.events]:  eta: 5:59:18  iter: 2999  total_loss: 1.122    time: 0.2488  last_time: 0.3846  data_time: 0.0696  last_data_time: 0.1493   lr: 0.01  max_mem: 12773M
[06/07 01:53:29 d2.engine.train_loop]: Starting training from iteration 3000
[06/07 01:53:53 d2.utils.events]:  eta: 5:44:17  iter: 3099  total_loss: 1.055    time: 0.2356  last_time: 0.2291  data_time: 0.0430  last_data_time: 0.0037   lr: 0.01  max_mem: 11276M
[06/07 01:54:18 d2.utils.events]:  eta: 5:57:19  iter: 3199  total_loss: 1.062    time: 0.2394  last_time: 0.2410  data_time: 0.0444  last_data_time: 0.0041   lr: 0.01  max_mem: 11276M""".splitlines()


def test_a_run_of_detectron2_that_goes_on_is_not_the_one_that_broke() -> None:
    text = "".join(line + "\n" for line in DETECTRON)
    made = interpret(scan(text.encode()), (), (), {"batch_size": 8}, rule("default")).results
    assert [each.status for each in made] == [Status.FAILED, Status.OK]
    assert made[1].samples_per_s == pytest.approx(8 * 100 / 25), "from 01:53:53 to 01:54:18"


# --- MMEngine: an epoch's validation is not in the next line's time

ENGINE = """\
2023/06/06 21:59:33 - mmengine - INFO - Epoch(train)   [1][100/137]  lr: 1.9051e-06  eta: 2:11:38  time: 0.1868  data_time: 0.0008  memory: 5806  loss: 3.5246
2023/06/06 21:59:43 - mmengine - INFO - Epoch(val) [1][17/17]    accuracy/top1: 3.4323  accuracy/top5: 14.5640  data_time: 0.0471  time: 0.1634
2023/06/06 22:00:02 - mmengine - INFO - Epoch(train)   [2][100/137]  lr: 4.4030e-06  eta: 2:09:50  time: 0.1877  data_time: 0.0008  memory: 5806  loss: 3.4712""".splitlines()


def test_mmengines_times_are_without_the_validations_between_epochs() -> None:
    result = run(ENGINE, **ONE, batch_size=32)
    assert result.samples_per_s == pytest.approx(32 / 0.1877)
    assert result.external is not None and result.external.basis == "printed"
