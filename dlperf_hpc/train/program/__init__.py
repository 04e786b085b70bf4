"""Supervises a user's program: one supervisor per task of the launcher, the program below it.

The standard library only (and RE2, where a table has patterns), in the Python that submits, and no
MPI: the program may want it. The supervisor gives each line its moment of arrival, sees by the log
formats how far the program is, ends it behind the window, when it hangs or when its time is over,
and leaves no process behind.
"""
