#!/usr/bin/env bash
# A shell for make, which appends to the file $TIMES how long each command took.
#
# usage: TIMES=file make SHELL=$PWD/tools/timed.sh TARGETS...
set -uo pipefail
# Not for those that run make themselves.
unset MAKEFLAGS MAKEOVERRIDES

command=${2:0:100}
TIMEFORMAT="%0R s, processor %0U s and %0S s in the kernel: ${command//%/%%}"
{ time bash "$@" 2>&3 3>&-; } 3>&2 2>>"$TIMES"
