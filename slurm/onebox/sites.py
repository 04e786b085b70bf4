"""Slurm sites unlike the usual one, each as settings of a plan: `up --like NAME`.

What a site allows, and how it says no, is its administrators' choice. These two were put together
from habits of real sites, so that whoever writes batch jobs meets those habits before a user does.
`slurm/NAME.toml` is the site profile that fits.
"""

from __future__ import annotations

import dataclasses

# A plug-in must have this function too.
_ANY_CHANGE = """\
function slurm_job_modify(job, record, partitions, uid)
    return slurm.SUCCESS
end
"""

# The scheduler forgets jobs soon and takes few; GPUs are known by their type alone.
_TYPED_GPUS_ONLY = """\
function slurm_job_submit(job, partitions, uid)
    for _, asked in ipairs({job.tres_per_node or "", job.tres_per_job or ""}) do
        if asked:match("gpu$") or asked:match("gpu[:=]%d") then
            slurm.log_user("GPUs have a type here, e.g. --gres=gpu:tiny:2; %s has none", asked)
            return slurm.ERROR
        end
    end
    return slurm.SUCCESS
end
"""

# The 24 of its greeting is no job's id: whoever looks for one in what sbatch prints must see that.
_ACCOUNTS_AND_SHORT_JOBS = """\
local LONGEST = 120 -- minutes
function slurm_job_submit(job, partitions, uid)
    slurm.log_user("welcome; job 24 of the manual says how to ask for more")
    if job.account == nil then
        slurm.log_user("which project pays? Name an account, e.g. --account=lab")
        return slurm.ERROR
    end
    if job.time_limit ~= slurm.NO_VAL and job.time_limit > LONGEST then
        slurm.log_user("%d min asked for, at most %d min allowed: --time", job.time_limit, LONGEST)
        return slurm.ERROR
    end
    return slurm.SUCCESS
end
"""


@dataclasses.dataclass(frozen=True)
class Site:
    """Settings of a plan, with a line on what is unusual. ``sacctmgr`` are commands for the
    accounting's database, in which {user} is who starts the cluster."""

    what: str
    gpu_type: str = ""
    accounting: str = "none"
    job_submit: str = ""
    conf: tuple[str, ...] = ()
    sacctmgr: tuple[str, ...] = ()


USUAL = Site(what="nothing is unusual")
SITES = {
    "small-limits": Site(
        what="arrays of 5 at most, 12 jobs in all, forgotten after 30 s, GPUs only by type",
        gpu_type="tiny",
        job_submit=_TYPED_GPUS_ONLY + _ANY_CHANGE,
        conf=("MaxArraySize=5", "MaxJobCount=12", "MinJobAge=30"),
    ),
    "accounting": Site(
        what="slurmdbd, 3 jobs a user, preemption, a plug-in that refuses, whole nodes only",
        accounting="slurmdbd",
        job_submit=_ACCOUNTS_AND_SHORT_JOBS + _ANY_CHANGE,
        conf=(
            "AccountingStorageEnforce=associations,limits,qos",
            "PreemptType=preempt/qos",
            "PreemptMode=REQUEUE",
            "PriorityType=priority/multifactor",
            "PriorityWeightQOS=1000",
            "SelectType=select/linear",
            "SelectTypeParameters=CR_Memory",
        ),
        sacctmgr=(
            "modify qos normal set MaxSubmitJobsPerUser=3",
            "add qos urgent Preempt=normal Priority=100",
            "add account lab",
            "add user {user} account=lab qos=normal,urgent defaultqos=normal",
        ),
    ),
}
