"""On this site, will it work? What ``doctor`` and ``sweep --check`` look at, one line for each.

examine    all of it, in order: what the engine sees from this machine, then the short jobs
trial      what a short job is to try, and what is known of it
job        the short jobs: submitted, watched, ended
beforehand what `sweep` looks at before its first submission, without a job
diagnosis  what their ranks told, as check results
"""
