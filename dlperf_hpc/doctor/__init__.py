"""On this site, will it work? What ``doctor`` and ``sweep --check`` look at, one line for each.

examine       all of it, in order: what the engine sees from this machine, then the short jobs
preflight     what `sweep` looks at before its first submission, without a job
job           the short jobs: what they try; submitted, watched, ended
diagnosis     what their ranks reported, as check results
measurements  nodes and pairs of nodes, collectives by size
"""
