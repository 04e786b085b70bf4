#!/bin/sh
# The C++ compiler that Horovod 0.28.1 is given: g++ with what its CMakeLists gets wrong by now.
# - It hard-codes C++14 and strips CXXFLAGS; torch (since 2.1) and TensorFlow need 17: the last -std counts.
# - xla_mpi_ops.cc, code for GPUs alone, includes XLA headers that TensorFlow's wheels no longer have;
#   told that TensorFlow is older, it leaves itself out.
# - libmpi of an MPI wheel lies in the environment's lib: found from where Horovod's modules lie, so
#   that the wheel also works in an environment that it was not built in.
more="-std=c++17 -g0 -O2"
case "$*" in
    *-shared*) more="$more -Wl,-rpath,\$ORIGIN/../../../.." ;; # links xla_mpi_ops.cc.o, too
    *xla_mpi_ops.cc*) more="$more -UTENSORFLOW_VERSION -DTENSORFLOW_VERSION=0" ;;
esac
# shellcheck disable=SC2086 # words, each of them
exec g++ "$@" $more
