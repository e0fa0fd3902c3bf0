#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a program of GoogleTest's in as many processes as there are processors, up to eight:
#   tests/in_shards.sh PROGRAM [ARGUMENT ...]
# Tests take from a millisecond to a minute, so that there are more shares of them than processes: the
# next one begins where one has ended. What a share says appears at its end. Fails if any does.
set -uo pipefail
count=$(($(nproc) < 8 ? $(nproc) : 8))
said=$(mktemp -d)
trap 'rm -rf "$said"' EXIT
export said GTEST_TOTAL_SHARDS=32

share() {  # PROGRAM [ARGUMENT ...] NUMBER
  local number=${!#}
  GTEST_SHARD_INDEX=$number "${@:1:$#-1}" >"$said/$number" 2>&1
  local status=$?
  cat "$said/$number"
  ((status == 0)) || echo "share $number of the tests ended with status $status"
  return $((status > 0))
}
export -f share

seq 0 $((GTEST_TOTAL_SHARDS - 1)) | xargs -n 1 -P "$count" bash -c 'share "$@"' share "$@"
